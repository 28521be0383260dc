"""Trainers that know one vLLM, each with its own calls, at the one address of a fleet.

Two fleets of three real workers: one whose weights the operator manages, and one that its trainer drives.
In an update of each, a worker is lost in the middle. Clients sample through the same address all the
time, and every token is recomputed. The first test is the shortest: it takes the two workers that are
there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import FLEET, NAMESPACE, WORKERS, Fleet
from tests.support.adapters import write_adapter
from tests.support.audit import audit_file
from tests.support.dynamo_clients import Dynamo
from tests.support.nemo_rl import NemoRl
from tests.support.plugins import file_transfer
from tests.support.prime_rl import METRICS, Page, PrimeRl
from tests.support.released_clients import ReleasedClients

import stack
from chaos.processes import node_of, signal_worker
from stack.fleets import MODEL_NAME, WEIGHTS_ROOT

NAME = "driven"
NUMBER = 3
KEY = "a-key-of-the-trainers"
KEYS = "trainers"
SYSTEM = "rlfleet-system"
SETTINGS = ("api.enabled=true", f"api.keysSecret={KEYS}")
STARTS_SECONDS = 400
LEASE_SECONDS = 120
THINK_SECONDS = 2.0
"""Every token is recomputed, and engines start on the same cores."""


@dataclasses.dataclass
class Address:
    """One fleet's address in the RL API.

    Fields:
        fleet: its clients sample through the same address.
        url: for clients with headers, from this machine.
        inside: the same for clients without headers, from a node.
        token: of an account that may edit fleets.
    """

    fleet: Fleet
    url: str
    inside: str
    token: str

    @property
    def versions(self) -> list[str]:
        """Versions in the engines of the workers, by their own metrics."""
        return [self.fleet.version_of(pod) for pod in sorted(self.fleet.pods())]

    def all_serve(self, version: str, seconds: float = STARTS_SECONDS) -> None:
        """Wait until every worker serves a version, and chats come from it."""
        phases = [version] * NUMBER, ["serving"] * NUMBER
        self.fleet.eventually(
            lambda: (
                (
                    self.versions,
                    [self.fleet.phase_of(pod) for pod in self.fleet.pods()],
                )
                == phases
            ),
            f"all workers serve {version}",
            seconds=seconds,
        )

    def chat(self) -> dict[str, Any]:
        """The audit's record of one chat."""
        body = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": "one"}],
            "max_tokens": 24,
            "logprobs": True,
            "return_token_ids": True,
        }
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.url}/v1/chat/completions"
        reply = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
        found = reply.raise_for_status().json()
        (choice,) = found["choices"]
        return {
            "id": found["id"],
            "prompt_token_ids": found["prompt_token_ids"],
            "token_ids": choice["token_ids"],
            "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
            "weight_versions": choice["weight_versions"],
        }


@pytest.fixture(scope="module")
def external(shared_fleet: Fleet) -> Iterator[Fleet]:
    """A fleet that its trainer drives, also by sending weights directly. It may not have started."""
    fleet = Fleet(shared_fleet.cluster, shared_fleet.weights, shared_fleet.steps, name=NAME)
    plugins = fleet.weights / "plugins"
    shutil.copytree(Path(file_transfer.__file__).parent, plugins, dirs_exist_ok=True)
    manifest = stack.fleet_manifest(NAME, replicas=NUMBER)
    spec = manifest["spec"]
    spec["weights"] |= {"management": "External", "driverLeaseSeconds": LEASE_SECONDS}
    spec["weights"]["transfer"] = {"backend": file_transfer.BACKEND}
    spec["adapters"] = {"max": 1, "maxRank": 8}
    spec["engine"] = {**spec["engine"]}
    spec["engine"]["env"] = [
        *spec["engine"]["env"],
        {"name": "PYTHONPATH", "value": f"/opt/rlfleet/app:{WEIGHTS_ROOT}/plugins"},
        {"name": file_transfer.ENV_WIRE, "value": f"{WEIGHTS_ROOT}/wire.safetensors"},
    ]
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    yield fleet
    fleet.kubectl("delete", "ifl", NAME)


@pytest.fixture(scope="module")
def account(shared_fleet: Fleet) -> str:
    """The RL API, as the chart deploys it. Returns: the token of an account that may edit fleets."""
    kubectl = shared_fleet.kubectl
    shared_fleet.cluster.kubectl(
        *("-n", SYSTEM, "create", "secret", "generic", KEYS),
        f"--from-literal={NAMESPACE}.{FLEET}={KEY}-of-{FLEET}",
    )
    kubectl("create", "serviceaccount", "trainer")
    rights = ("--clusterrole=edit", f"--serviceaccount={NAMESPACE}:trainer")
    kubectl("create", "rolebinding", "trainer", *rights)
    stack.install(shared_fleet.cluster, *SETTINGS)
    return str(kubectl("create", "token", "trainer", "--audience=rlfleet").stdout.strip())


@pytest.fixture(scope="module")
def driver(account: str, external: Fleet) -> str:
    """The RL API with the fleet that its trainer drives. Returns: the account's token."""
    cluster, kubectl = external.cluster, external.kubectl
    external.eventually(
        lambda: kubectl("get", f"secret/{NAME}-admin-token", "-o", "name", check=False).stdout,
        "the operator has made the admin token",
    )
    keys = {"stringData": {f"{NAMESPACE}.{NAME}": f"{KEY}-of-{NAME}"}}
    cluster.kubectl("-n", SYSTEM, "patch", "secret", KEYS, "-p", json.dumps(keys))
    stack.install(cluster, *SETTINGS, f"api.externalFleets={{{NAMESPACE}/{NAME}}}")
    return account


def address(fleet: Fleet, token: str) -> Address:
    path = f"/fleets/{NAMESPACE}/{fleet.name}"
    with_key = f"/t/{KEY}-of-{fleet.name}{path}"
    outside = f"http://127.0.0.1:{fleet.cluster.forward(SYSTEM, 'service/rlfleet-api', 8090)}"
    return Address(
        dataclasses.replace(fleet, _url=outside + with_key),
        outside + path,
        f"http://rlfleet-api.{SYSTEM}.svc:8090{with_key}",
        token,
    )


@pytest.fixture
def shared(account: str, fleet: Fleet) -> Iterator[Address]:
    """The shared fleet. Trainers name directories, which the next tests must not inherit."""
    yield address(fleet, account)
    fleet.publish(str(fleet.next_step()), source={"path": fleet.source})
    fleet.wait_ready()


@pytest.fixture
def managed(shared: Address, fleet: Fleet) -> Iterator[Address]:
    """The shared fleet, with one worker more."""
    fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", replicas(NUMBER))
    fleet.wait_whole(seconds=STARTS_SECONDS)
    yield shared
    fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", replicas(WORKERS))


@pytest.fixture
def driven(driver: str, external: Fleet) -> Address:
    external.wait_ready(f"ifl/{NAME}", seconds=STARTS_SECONDS)
    return address(external, driver)


def replicas(number: int) -> str:
    return json.dumps({"spec": {"replicas": number}})


@contextmanager
def lost_midway(
    fleet: Fleet, pod: str, is_midway: Callable[[], bool], *, hangs: bool = True
) -> Iterator[None]:
    """While the block runs, the pod is lost when the others are midway.

    Until then its engine hangs, unless the update itself sees to that.
    """
    node = node_of(fleet, pod)
    if hangs:
        signal_worker(fleet, pod, "engine", "SIGSTOP", node=node)

    def kill() -> None:
        fleet.eventually(is_midway, "an update is midway", seconds=120)
        signal_worker(fleet, pod, "worker", "SIGKILL", node=node)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        killer.join()


def step(fleet: Fleet) -> tuple[str, str, Path]:
    """A checkpoint that was not used: its version, its directory as workers see it, and here."""
    number = fleet.next_step()
    return str(number), f"{WEIGHTS_ROOT}/step_{number}", fleet.folder(number)


def check_pages(pages: list[Page], pods: list[str]) -> None:
    """Each page had the engines but a lost one, and the last page each engine with each metric."""
    assert all(len(engines) >= len(pods) - 1 for page in pages for engines in page.values())
    found = {name: sorted(e.partition("/")[0] for e in pages[-1][name]) for name in METRICS}
    assert found == dict.fromkeys(METRICS, pods)


def test_two_trainers_publish_and_clients_sample_at_the_one_address(
    shared: Address, fleet: Fleet, tmp_path: Path
) -> None:
    one, replies = shared, tmp_path / "replies.jsonl"
    began = fleet.applied()
    prime_rl = PrimeRl(f"{one.url}/v1", one.token)
    (first, path, folder), (second, path_2, folder_2) = step(fleet), step(fleet)

    def train() -> None:
        assert prime_rl.wait_for_ready(MODEL_NAME) == 2048
        prime_rl.init_broadcaster(WORKERS)
        with prime_rl.metrics_polled() as pages:
            prime_rl.update_weights(path, folder)
        check_pages(pages, sorted(fleet.pods()))
        assert one.versions == [first] * WORKERS
        prime_rl.unload_adapter("sql")
        assert prime_rl.statuses("/v1/unload_lora_adapter") == [409]
        with closing(NemoRl(one.url, one.token)) as nemo_rl:
            assert nemo_rl.connect(MODEL_NAME) == WORKERS
            assert nemo_rl.refit(path_2) == [None] * WORKERS
        assert one.versions == [second] * WORKERS

    with closing(prime_rl):
        samples = one.fleet.while_sampling(replies, train)

    assert samples.lost == []
    served = {began: fleet.folder(int(began)), first: folder, second: folder_2}
    audited(replies, one.chat(), served)


@pytest.mark.long
def test_the_operator_carries_the_calls_of_trainers_out(managed: Address, tmp_path: Path) -> None:
    fleet, replies = managed.fleet, tmp_path / "replies.jsonl"
    began = fleet.applied()
    lost, _, seen = sorted(fleet.pods())
    prime_rl = PrimeRl(f"{managed.url}/v1", managed.token)
    versions = [step(fleet) for _ in range(4)]
    (first, path, folder), (second, *with_a_loss), (bad, bad_path, bad_folder), (last, *more) = (
        versions
    )

    def train() -> None:
        assert prime_rl.wait_for_ready(MODEL_NAME) == 2048
        prime_rl.init_broadcaster(NUMBER)
        prime_rl.update_weights(path, folder)
        managed.all_serve(first, seconds=10)

        with lost_midway(fleet, lost, lambda: fleet.phase_of(seen) == "paused"):
            prime_rl.update_weights(*with_a_loss)
        managed.all_serve(second)
        assert set(prime_rl.statuses("/update_weights")) <= {200, 503, 504}

        prime_rl.answers.clear()
        file = bad_folder / "model.safetensors"
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(httpx.HTTPStatusError):
            prime_rl.update_weights(bad_path, bad_folder)
        assert prime_rl.statuses("/update_weights") == [422], "it is final: prime-rl ends"
        assert prime_rl.answers[1].body["reason"] == "CheckpointTruncated"
        assert prime_rl.statuses("/resume") == [200]
        assert managed.versions == [second] * NUMBER

        with closing(NemoRl(managed.url, managed.token)) as nemo_rl:
            assert nemo_rl.connect(MODEL_NAME) == NUMBER
            assert nemo_rl.refit(more[0]) == [None] * NUMBER
        assert managed.versions == [last] * NUMBER

    with closing(prime_rl):
        with prime_rl.metrics_polled() as pages:
            samples = fleet.while_sampling(replies, train, think_seconds=THINK_SECONDS)
        check_pages(pages, sorted(fleet.pods()))
        score = prime_rl.score(MODEL_NAME, [1, 2, 3, 4])
    chat = managed.chat()

    assert samples.lost == []
    assert len(score) == 4
    assert chat["weight_versions"][0]["version"] == last
    assert samples.tokens.keys() >= {second, last}
    checkpoints = {began: fleet.folder(int(began))} | {v: found for v, _, found in versions}
    del checkpoints[bad]
    audited(replies, chat, checkpoints)


@pytest.mark.long
def test_a_trainer_drives_all_workers_with_its_own_calls(driven: Address, tmp_path: Path) -> None:
    fleet, replies = driven.fleet, tmp_path / "replies.jsonl"
    pods = sorted(fleet.pods())
    prime_rl = PrimeRl(f"{driven.url}/v1", driven.token)
    versions = [step(fleet) for _ in range(4)]
    (first, *lossy), (second, path_2, _), (third, path_3, _), (fourth, path_4, _) = versions

    def train() -> None:
        assert prime_rl.wait_for_ready(MODEL_NAME) == 2048
        with lost_midway(fleet, pods[1], lambda: fleet.version_of(pods[0]) == first):
            prime_rl.update_weights(*lossy)
        failed, *repeated = [a for a in prime_rl.answers if a.path == "/update_weights"]
        assert failed.status == 503
        assert [row["pod"] for row in failed.body["workers"]] == pods
        assert [row["status"] for row in failed.body["workers"]] == [200, None, 200]
        assert repeated[-1].status == 200
        assert prime_rl.statuses("/resume")[-1] == 200
        driven.all_serve(first)

        dynamo = Dynamo(f"{driven.url}/v1", driven.token, reach=lambda url: url)
        rows = dynamo.workers(MODEL_NAME, NUMBER)
        assert [row["pod"] for row in rows] == pods
        dynamo.update_natively(rows, path_2, second)
        driven.all_serve(second, seconds=10)
        dynamo.update_flat(dynamo.workers(MODEL_NAME, NUMBER), path_3, f"step_{third}")
        driven.all_serve(f"step_{third}", seconds=10)

        with closing(NemoRl(driven.url, driven.token)) as nemo_rl:
            assert nemo_rl.connect(MODEL_NAME) == NUMBER
            with (
                lost_midway(fleet, pods[2], lambda: fleet.phase_of(pods[0]) == "paused"),
                pytest.raises(httpx.HTTPStatusError) as refused,
            ):
                nemo_rl.refit(path_4)
            rows = refused.value.response.json()["workers"]
            assert (refused.value.response.status_code, len(rows)) == (503, NUMBER)
            assert [row["status"] for row in rows] == [200, 200, None], "NeMo-RL ends here"
            fleet.eventually(
                lambda: fleet.phase_of(pods[2]), "it has started again", STARTS_SECONDS
            )
        # Its next run does the same again: the workers are as they were left.
        with closing(NemoRl(driven.url, driven.token)) as nemo_rl:
            assert nemo_rl.connect(MODEL_NAME) == NUMBER
            assert nemo_rl.refit(path_4) == [None] * NUMBER
        driven.all_serve(fourth, seconds=10)

    with closing(prime_rl), prime_rl.metrics_polled() as pages:
        samples = fleet.while_sampling(replies, train, think_seconds=THINK_SECONDS)

    check_pages(pages, pods)
    assert samples.lost == []
    assert samples.tokens.keys() >= {first, fourth}
    names = [first, second, f"step_{third}", fourth]
    checkpoints = {name: found for name, (_, _, found) in zip(names, versions, strict=True)}
    audited(replies, driven.chat(), {"base": fleet.weights / "base"} | checkpoints)


@pytest.mark.long
def test_an_adapter_is_loaded_and_swapped_on_all_workers(driven: Address, tmp_path: Path) -> None:
    fleet, replies = driven.fleet, tmp_path / "replies.jsonl"
    for number in (1, 2):
        write_adapter(fleet.weights / f"sql_{number}", seed=number)
    prime_rl = PrimeRl(f"{driven.url}/v1", driven.token)
    (base,) = set(driven.versions)
    path = fleet.get(f"ifl/{NAME}")["status"]["applied"]["source"]["path"]

    def swap() -> None:
        prime_rl.load_adapter("sql", f"{WEIGHTS_ROOT}/sql_2")
        fleet.eventually(lambda: "sql_2" in adapters_of(replies).values(), "clients get sql_2")

    with closing(prime_rl):
        prime_rl.load_adapter("sql", f"{WEIGHTS_ROOT}/sql_1")
        samples = fleet.while_sampling(replies, swap, model="sql", think_seconds=THINK_SECONDS)
        assert models_of(fleet) == [{MODEL_NAME, "sql"}] * NUMBER
        prime_rl.unload_adapter("sql")
        assert prime_rl.statuses("/v1/unload_lora_adapter") == [200]
        assert models_of(fleet) == [{MODEL_NAME}] * NUMBER, "each worker has room for another one"

    assert samples.lost == []
    assert set(adapters_of(replies).values()) == {"sql_1", "sql_2"}
    folders = {label: fleet.weights / folder for label, folder in adapters_of(replies).items()}
    done = audit_file(replies, {base: fleet.weights / Path(path).name}, folders)
    assert done.returncode == 0, done.stdout + done.stderr


def models_of(fleet: Fleet) -> list[set[str]]:
    """Names that each worker serves."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{{}}:8000/proxy/v1/models"
    pages = (fleet.cluster.kubectl("get", "--raw", path.format(pod)).stdout for pod in fleet.pods())
    return [{row["id"] for row in json.loads(page)["data"]} for page in pages]


def adapters_of(replies: Path) -> dict[str, str]:
    """The versions of the adapter that made tokens, each with its directory: `sql_1-72b80823`, `sql_1`."""
    # The last line may be on its way.
    lines = replies.read_text().rpartition("\n")[0].splitlines() if replies.exists() else []
    spans = (span for line in lines for span in json.loads(line)["weight_versions"])
    return {span["adapter"]: span["adapter"].rpartition("-")[0] for span in spans}


@pytest.mark.long
def test_released_clients_run_as_they_are(driven: Address, tmp_path: Path) -> None:
    fleet, replies = driven.fleet, tmp_path / "replies.jsonl"
    began = driven.versions[0]
    source = fleet.get(f"ifl/{NAME}")["status"]["applied"]["source"]["path"]
    served = {began: fleet.weights / Path(source).name}
    versions = [step(fleet) for _ in range(4)]
    files = [f"{path}/model.safetensors" for _, path, _ in versions]

    def train() -> None:
        with ReleasedClients(driven.inside, fleet.weights, fleet.cluster.inside) as clients:
            sync = {"act": "vllm_syncs", "file": files[0], "world_size": NUMBER + 1}
            failed = clients.outcome(**sync, label="sync-1", fails_at=2)
            assert failed["status"] == 503, failed
            # The worker has its last weights from files, so it has them again. A trainer repeats.
            clients.must(**sync, label="sync-2")
            driven.all_serve("sync-2")

            found = clients.must("trl_async", file=files[1])
            assert found == {"world_size": 3, "dtype": "torch.bfloat16", "max_model_len": 2048}
            (async_version,) = set(driven.versions)
            lost = sorted(fleet.pods())[1]
            with lost_midway(fleet, lost, lambda: fleet.phase_of(lost) == "loading", hangs=False):
                failed = clients.outcome("trl_async", file=files[3], hangs_at=2)
            assert "Request failed: 503" in failed["error"], "TRL ends here"
            fleet.eventually(lambda: fleet.phase_of(lost), "it has started again", STARTS_SECONDS)
            clients.must("trl_async", file=files[3])
            driven.all_serve(driven.versions[0])
            (again_version,) = set(driven.versions)

            done = clients.must("trl_sync", step=versions[2][2].name)
            assert done["model"] == MODEL_NAME
            assert [len(ids) for ids in done["after"]["completion_ids"]] == [8, 8]
            (sync_version,) = set(driven.versions)
            served.update({async_version: versions[1][2], again_version: versions[3][2]})
            served[sync_version] = versions[2][2]
            assert len(served) == 4

            life = clients.must("skyrl", model=MODEL_NAME)
            assert (life["paused"], life["world_size"]) == ("paused", [NUMBER, NUMBER])
            assert life["tokens"][0] == life["tokens"][1]

    samples = fleet.while_sampling(replies, train, think_seconds=THINK_SECONDS)

    assert samples.lost == []
    served["sync-2"] = versions[0][2]
    assert samples.tokens.keys() >= {began, "sync-2"}
    audited(replies, driven.chat(), served)


def audited(replies: Path, chat: dict[str, Any], checkpoints: dict[str, Path]) -> None:
    """Every token of the replies and of a chat was made by the weights that it names."""
    records = [json.loads(line) for line in replies.read_text().splitlines()]
    replies.write_text("".join(json.dumps(record) + "\n" for record in [*records, chat]))
    done = audit_file(replies, checkpoints)
    assert done.returncode == 0, done.stdout + done.stderr
