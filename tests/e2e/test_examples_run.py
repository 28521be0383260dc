"""Fleets of `examples` with real workers, and their programs in a trainer's pod with a trainer's rights.

A fleet is the example's, with what a CPU needs and the model's name of the fleet here. The fleet here is
patched to it, so its workers stay. Each example trains a run of its own, since tests before have served
versions of these numbers.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.e2e.conftest import FLEET, NAMESPACE, Fleet
from tests.support.adapters import write_adapter
from tests.support.pages import ROOT

import stack
from stack.fleets import MODEL_NAME, WEIGHTS_ROOT
from stack.trainer import CODE, trainer_account, trainer_pod

EXAMPLES = ROOT / "examples"
CANARY, LORA, LOOP, STAGES = (
    "canary/publish.py",
    "lora/publish.py",
    "pytorch/train.py",
    "two-stage/stages.py",
)
CLIENTS = ("nemo-rl", "prime-rl", "skyrl", "trl", "verifiers")
"""Folders of trainers whose clients other tests run: `test_one_address.py` and `tests/clients`."""
KEY = "a-key-of-the-rollouts"
NAME = "examples"
"""Name of the trainer's pod."""
ADAPTED = "policy-sql"
"""The adapter's WeightVersion and, instead of `policy`, the fleet with adapters."""
ROOT_USER = 0
"""As in most containers of trainers. Workers run as another user."""
STARTS_SECONDS = 240


def manifests(program: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fleet and the WeightVersion of a program's folder, for the cluster here."""
    text = (EXAMPLES / program).with_name("fleet.yaml").read_text()
    fleet, weights = yaml.safe_load_all(text)
    fleet["spec"]["model"]["name"] = MODEL_NAME
    return stack.for_a_cpu(fleet), weights


@dataclass(frozen=True)
class Trainer:
    """The pod with the programs, and the fleet that they know as `policy`."""

    fleet: Fleet

    def run(self, program: str, *arguments: str) -> list[str]:
        """The lines that a program prints."""
        run = run_of(program)
        variables = (f"RUN_ID={run}", f"RUN_DIRECTORY={WEIGHTS_ROOT}/{run}")
        words = ("env", f"POLICY_MODEL={MODEL_NAME}", *variables, "python3")
        command = (*words, f"{CODE}/{in_pod(program)}", *arguments)
        done = self.fleet.kubectl("exec", NAME, "--", *command, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return str(done.stdout).splitlines()

    def apply(self, program: str) -> None:
        """Put the example in place of the fleet. The weights come first: a canary compares with them."""
        fleet, weights = manifests(program)
        assert fleet["metadata"] == weights["metadata"] == {"name": FLEET, "namespace": NAMESPACE}
        wanted, run = weights["spec"], f"base-of-{run_of(program)}"
        self.fleet.publish(wanted["version"], source=wanted["source"], runID=run)
        self.fleet.wait_whole()
        self.fleet.patch_fleet({"spec": fleet["spec"]})
        self.fleet.wait_whole()

    def write(self, program: str, version: int, like: Path) -> None:
        """A checkpoint where a program looks for it."""
        shutil.copytree(like, self.fleet.weights / run_of(program) / f"step_{version}")


def run_of(program: str) -> str:
    """The run of a program, and the directory below the volume that it names."""
    return Path(program).parent.name


def in_pod(program: str) -> str:
    """Name of a program's file: keys of ConfigMaps have no slashes."""
    return program.replace("/", "-")


@pytest.fixture(scope="module")
def adapted(shared_fleet: Fleet) -> Iterator[Fleet]:
    """The example with an adapter, with one worker. It starts while other tests run."""
    made = Fleet(shared_fleet.cluster, shared_fleet.weights, itertools.count(1), name=ADAPTED)
    for version in (1, 2):
        write_adapter(made.weights / "sql" / f"step_{version}", seed=version)
    fleet, weights = manifests(LORA)
    fleet["metadata"]["name"] = weights["spec"]["fleetRef"]["name"] = ADAPTED
    fleet["spec"]["replicas"] = 1
    made.apply(fleet, weights)
    yield made
    made.kubectl("delete", "wv,ifl", ADAPTED)


@pytest.fixture(scope="module")
def pod(shared_fleet: Fleet, adapted: Fleet) -> Iterator[None]:
    """The trainer's pod. It may write below one directory of the volume, for each program."""
    for program in (CANARY, LOOP, STAGES):
        folder = shared_fleet.weights / run_of(program)
        folder.mkdir()
        folder.chmod(0o777)
    files = {in_pod(p): (EXAMPLES / p).read_text() for p in (CANARY, LORA, LOOP, STAGES)}
    volume = {"hostPath": {"path": str(shared_fleet.weights)}}
    account = trainer_account(NAME, [FLEET, ADAPTED], FLEET)
    made = trainer_pod(NAME, stack.WORKER_IMAGE, volume, files, ROOT_USER)
    shared_fleet.apply(*account, *made)
    shared_fleet.wait_ready(f"pod/{NAME}")
    yield
    shared_fleet.kubectl("delete", "pod", NAME)


@pytest.fixture
def trainer(fleet: Fleet, pod: None) -> Iterator[Trainer]:
    yield Trainer(fleet)
    fleet.patch_fleet({"spec": {"rollout": {"strategy": None, "canary": None}}})
    usual = {"source": {"path": fleet.source}, "runID": None, "rollbackTo": None}
    fleet.publish(str(fleet.next_step()), **usual)


def applied(fleet: Fleet) -> tuple[str, str]:
    found = fleet.get(f"ifl/{FLEET}")["status"]["applied"]
    return found["version"], found["source"]["path"]


def test_a_training_loop_publishes_what_it_has_trained(trainer: Trainer) -> None:
    trainer.apply(LOOP)

    printed = trainer.run(LOOP)

    assert [line.partition(" after ")[0] for line in printed] == [
        "step 2 serves", "0.0", "step 4 serves", "0.0",
    ]  # fmt: skip
    trainer.fleet.wait_whole()
    assert applied(trainer.fleet) == ("4", f"{WEIGHTS_ROOT}/{run_of(LOOP)}/step_4")
    assert trainer.fleet.get(f"wv/{FLEET}")["status"]["effect"]["unchanged"] is False


def test_two_stages_never_train_on_tokens_that_are_too_old(trainer: Trainer) -> None:
    trainer.apply(STAGES)
    steps = range(1, 5)
    for step in steps:
        trainer.write(STAGES, step, trainer.fleet.folder(trainer.fleet.next_step()))

    printed = trainer.run(STAGES, str(len(steps)))

    made_by = [
        line.removeprefix(f"step {n} trains on tokens of ")
        for n, line in zip(steps, printed, strict=True)
    ]
    oldest = [min(map(int, versions.split(", "))) for versions in made_by]
    assert all(version >= step - 2 for step, version in zip(steps, oldest, strict=True)), printed
    trainer.fleet.wait_whole()
    assert applied(trainer.fleet) == ("4", f"{WEIGHTS_ROOT}/{run_of(STAGES)}/step_4")


def test_a_canary_is_published_or_taken_back(trainer: Trainer) -> None:
    trainer.apply(CANARY)
    fleet = trainer.fleet
    trainer.write(CANARY, 43, fleet.weights / "base")
    trainer.write(
        CANARY, 44, fleet.folder(fleet.next_step())
    )  # random weights agree with no others

    (served,) = trainer.run(CANARY, "43")
    refused, back = trainer.run(CANARY, "44")

    assert served.startswith("step 43 serves after ")
    assert refused.startswith("step 44 is refused, CanaryRefused: ")
    assert back == "version 43 is desired again"
    fleet.wait_whole()
    assert applied(fleet) == ("43", f"{WEIGHTS_ROOT}/{run_of(CANARY)}/step_43")


def test_an_adapter_is_published(trainer: Trainer, adapted: Fleet) -> None:
    adapted.wait_ready(f"wv/{ADAPTED}", seconds=STARTS_SECONDS)

    printed = trainer.run(LORA, "2")

    assert printed == ["adapter sql has version 2"]
    assert adapted.get(f"wv/{ADAPTED}")["status"]["workersApplied"] == "1/1"
    asked = {"model": "sql", "prompt": "one two", "max_tokens": 4}
    reply = httpx.post(f"{adapted.url()}/v1/completions", json=asked, timeout=60, trust_env=False)
    (choice,) = reply.raise_for_status().json()["choices"]
    assert {span["adapter"] for span in choice["weight_versions"]} == {"2"}


@pytest.mark.long
@pytest.mark.parametrize("folder", CLIENTS)
def test_the_fleet_of_a_trainers_client_serves(shared_fleet: Fleet, folder: str) -> None:
    """With one worker. A CPU has no NCCL, so that TRL's fleet gets no transfer."""
    made = Fleet(shared_fleet.cluster, shared_fleet.weights, shared_fleet.steps, name=folder)
    fleet, *weights = yaml.safe_load_all((EXAMPLES / folder / "fleet.yaml").read_text())
    spec = stack.for_a_cpu(fleet)["spec"]
    with_key = "policy-api" in str(spec)
    spec["replicas"], spec["model"]["name"] = 1, MODEL_NAME
    assert spec["weights"].pop("transfer", None) == (
        {"backend": "nccl"} if folder == "trl" else None
    )
    fleet["metadata"]["name"] = folder
    for each in weights:
        each["metadata"]["name"] = each["spec"]["fleetRef"]["name"] = folder
    if with_key:
        made.kubectl("create", "secret", "generic", "policy-api", f"--from-literal=key={KEY}")

    try:
        made.apply(fleet, *weights)
        made.wait_ready(f"ifl/{folder}", seconds=STARTS_SECONDS)

        asked = {"model": MODEL_NAME, "prompt": "one two", "max_tokens": 4}
        url, headers = f"{made.url()}/v1/completions", {"Authorization": f"Bearer {KEY}"}
        reply = httpx.post(url, json=asked, headers=headers, timeout=60, trust_env=False)
        (choice,) = reply.raise_for_status().json()["choices"]
        assert {span["version"] for span in choice["weight_versions"]} == {
            "0" if weights else "base"
        }
        without = httpx.post(url, json=asked, timeout=60, trust_env=False)
        assert without.status_code == (401 if with_key else 200)
    finally:
        made.kubectl("delete", "ifl,wv", folder, "--ignore-not-found")
        if with_key:
            made.kubectl("delete", "secret", "policy-api")
