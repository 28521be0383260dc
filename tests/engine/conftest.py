"""One real worker for most engine tests; tests that end a worker start their own."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engine.scripts import write_checkpoints
from tests.support.environments import ENGINE_ARGUMENTS, REPOSITORY, app_folder
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

_SEEDS = {"a": 1, "b": 2, "c": 3, "d": 4}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of each shared worker in one process of xdist, so that it is started once."""
    for item in items:
        if "driven" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("driven"))
        elif "started" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("worker"))
        # xdist distributes by the group at the end of the id. xdist 3.8 writes it where pytest 9.2 does
        # not read it (pytest-xdist issue 1386). Only the processes of xdist have this option.
        if config.getoption("loadgroup", default=False):
            for group in item.iter_markers("xdist_group"):
                item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")


@dataclass(frozen=True)
class Weights:
    """Checkpoints that tests use, all below one root; `a` is what workers start on."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    root = tmp_path_factory.mktemp("weights")
    wanted: dict[Path, dict[str, Any]] = {root / n: {"seed": s} for n, s in _SEEDS.items()}
    wanted[root / "sharded"] = {"seed": 2, "sharded": True}  # the weights of b in two files
    wanted[root / "wide"] = {"seed": 5, "shape": {"hidden": 96}}
    wanted[root / "deep"] = {"seed": 5, "shape": {"layers": 3}}
    wanted[root / "shallow"] = {"seed": 5, "shape": {"layers": 1}}
    write_checkpoints(wanted)
    return Weights(root)


@dataclass(frozen=True)
class FirstLook:
    """The answers of a worker before its first call."""

    state: dict[str, Any]
    ready: tuple[int, str]
    alive: int
    completion: tuple[int, dict[str, str], dict[str, Any]]
    models: int
    admitted_metric: float


WIRE_ARGUMENTS = (
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--scheduling-policy=priority",
    "--trust-request-chat-template",
)
"""Flags without which some rules of the wire contract could not be seen to hold."""


def _tokenizer(weights: Weights, folder: Path) -> Path:
    """The model's tokenizer, but one that puts a token before every prompt."""
    target = folder / "tokenizer"
    shutil.copytree(weights.a, target, ignore=shutil.ignore_patterns("*.safetensors"))
    file = target / "tokenizer.json"
    content = json.loads(file.read_text())
    name = "<|endoftext|>"
    before, text = (
        {"SpecialToken": {"id": name, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [before, text],
        "pair": [before, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [0], "tokens": [name]}},
    }
    file.write_text(json.dumps(content))
    return target


@pytest.fixture(scope="session")
def one_call(weights: Weights) -> dict[str, float]:
    """The `logit_bias` of a request for one call of a tool.

    A grammar allows any amount of white space and any number of calls; random weights write them
    until no token is left.
    """
    vocabulary = json.loads((weights.a / "tokenizer.json").read_text())["model"]["vocab"]
    end = json.loads((weights.a / "config.json").read_text())["eos_token_id"]
    white_space = {str(i): -100.0 for token, i in vocabulary.items() if set(token) & set("ĠĊčĉ")}
    return white_space | {str(end): 100.0}


@pytest.fixture(scope="session")
def started(
    weights: Weights, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcess, FirstLook]]:
    folder = tmp_path_factory.mktemp("worker")
    arguments = [*ENGINE_ARGUMENTS, *WIRE_ARGUMENTS, f"--tokenizer={_tokenizer(weights, folder)}"]
    with WorkerProcess(
        folder, model=weights.a, roots=[weights.root], engine_arguments=arguments
    ) as worker:
        worker.wait_until_up()
        ready = worker.admin.get("/readyz")
        completion = worker.public.post("/v1/completions", json={"model": "policy", "prompt": "x"})
        look = FirstLook(
            worker.state(),
            (ready.status_code, ready.text.strip()),
            worker.admin.get("/livez").status_code,
            (completion.status_code, dict(completion.headers), completion.json()),
            worker.public.get("/v1/models").status_code,
            worker.metric("rlfleet_worker_admitted"),
        )
        yield worker, look


@pytest.fixture
def first_look(started: tuple[WorkerProcess, FirstLook]) -> FirstLook:
    return started[1]


@pytest.fixture
def worker(started: tuple[WorkerProcess, FirstLook]) -> WorkerProcess:
    """The shared worker, serving, whatever the test before left behind."""
    shared = started[0]
    _serving(shared)
    return shared


def _serving(shared: WorkerProcess) -> None:
    """Bring a shared worker back to serving, without requests of the test before."""
    assert shared.process.poll() is None, f"a test ended the worker:\n{shared.log_tail()}"
    state = shared.state()
    if state["pause"] is not None:
        shared.must("resume", version=state["version"], holder=state["pause"]["holder"])
    elif state["phase"] == "joining":
        shared.must("admit", version=state["version"])
    state = eventually(
        lambda: _without_requests(shared), within_seconds=120, describe=shared.log_tail
    )
    assert state["phase"] == "serving"


def _without_requests(shared: WorkerProcess) -> dict[str, Any] | None:
    state = shared.state()
    return None if state["requests_running"] or state["requests_held"] else state


@pytest.fixture(scope="session")
def _driven(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("driven")
    options = [
        "--weights-management=External",
        "--driver-lease-seconds=30",
        "--weight-transfer-backend=files",
        "--loading=InPlace",
        "--max-loras=3",
        "--max-lora-rank=8",
    ]
    plugins = REPOSITORY / "tests" / "support" / "plugins"
    environment = {"PYTHONPATH": f"{app_folder()}:{plugins}"}
    with WorkerProcess(
        folder, model=weights.a, roots=[weights.root], options=options, environment=environment
    ) as worker:
        worker.wait_until_up()
        yield worker


@pytest.fixture
def driven(_driven: WorkerProcess, weights: Weights) -> WorkerProcess:
    """A second shared worker, which a trainer may drive and which has room for three adapters.

    Serving the weights of `a` under a label of their own, without adapters.
    """
    _serving(_driven)
    for adapter in _driven.state()["adapters"]:
        _driven.must_remove(adapter["name"])
    _driven.swap(f"home-{next(_numbers)}", weights.a)
    assert _driven.state()["phase"] == "serving"
    return _driven


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def new_version() -> Callable[[], str]:
    """Labels that no test has used."""
    return lambda: f"v{next(_numbers)}"


@pytest.fixture
def home(worker: WorkerProcess, weights: Weights, new_version: Callable[[], str]) -> str:
    """The version of `a`, being served by the shared worker."""
    version = new_version()
    worker.swap(version, weights.a)
    return version
