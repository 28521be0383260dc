"""The programs in `examples` that need no torch, run unchanged."""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import TRAINER
from tests.support.fake_objects import FakeObjects, patches
from tests.support.pages import ROOT
from tests.support.rl_api import RlApi

import rlfleet

EXAMPLES = ROOT / "examples"


def environment(api: RlApi, **variables: str) -> dict[str, str]:
    """The RL API in the environment of a program."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "client"),
        "RLFLEET_API_URL": api.url,
        "RLFLEET_API_TOKEN": TRAINER,
        **variables,
    }


async def run(api: RlApi, program: str, *arguments: str, **variables: str) -> str:
    """The output of a program with the RL API in its environment."""
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", EXAMPLES / program, *arguments),
        env=environment(api, **variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, output.decode()
    return output.decode()


def test_every_program_is_run_by_a_test():
    programs = {p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*.py")}
    others = ("tests/clients/test_examples.py", "tests/e2e/test_examples_run.py")
    tests = (Path(__file__), *(ROOT / other for other in others))
    named = "".join(test.read_text() for test in tests)

    assert len(programs) == 10
    assert {program for program in programs if f'{program}"' not in named} == set()


async def test_a_version_that_the_canary_takes_serves(api):
    assert "step 43 serves after 1.9 s" in await run(api, "canary/publish.py", "43")


async def test_a_version_that_the_canary_refuses_is_rolled_back(api):
    def refuse() -> None:
        api.objects.stall("CanaryRefused")
        api.objects._obeys = True

    api.objects._obeys = False
    api.objects.script.extend([lambda: None, refuse])

    printed = await run(api, "canary/publish.py", "43")

    assert "step 43 is refused, CanaryRefused: because of CanaryRefused" in printed
    assert "version 42 is desired again" in printed
    assert api.objects.weights["spec"]["version"] == "42"


class FakeWorkers:
    """Two workers behind one address; the first one never gets new weights."""

    def __init__(self) -> None:
        self.connections: list[Any] = []
        self.refused = 0
        self.version = 0

    async def complete(self, request: web.Request) -> web.Response:
        if request.transport not in self.connections:
            self.connections.append(request.transport)
        version = self.version if self.connections.index(request.transport) else 0
        self.version += 1
        demanded = request.headers.get("x-weight-version-min", "0")
        assert request.headers.get("x-weight-run", "run-1") == "run-1"
        if version < int(demanded):
            self.refused += 1
            return web.Response(status=409, headers={"Retry-After": "1"})
        span = {"version": str(version), "start": 0, "end": 8}
        return web.json_response({"choices": [{"index": 0, "weight_versions": [span]}]})


@pytest.fixture
async def workers() -> AsyncIterator[tuple[FakeWorkers, str]]:
    found, app = FakeWorkers(), web.Application()
    app.router.add_post("/v1/completions", found.complete)
    async with TestServer(app) as server:
        yield found, str(server.make_url("/"))


async def test_two_stages_never_train_on_tokens_that_are_too_old(api, workers):
    api.objects.make({"fleetRef": {"name": "policy"}, "version": "0", "source": {"path": "/w/0"}})
    fake, url = workers

    printed = await run(api, "two-stage/stages.py", "4", POLICY_URL=url)

    made_by = [int(line.rpartition(" ")[2]) for line in printed.splitlines()]
    assert len(made_by) == 4
    assert all(made >= step - 2 for step, made in enumerate(made_by, 1))
    assert fake.refused > 0
    assert api.objects.weights["spec"]["version"] == "4"


def test_a_version_of_an_adapter_is_published(monkeypatch, capsys):
    objects = FakeObjects(adapter="sql")
    objects.weights["metadata"]["name"] = "policy-sql"
    connected = rlfleet.Weights
    monkeypatch.setattr(rlfleet, "Weights", lambda *a, **o: connected(*a, **o, objects=objects))
    monkeypatch.setattr(sys, "argv", ["publish.py", "43"])

    runpy.run_path(str(EXAMPLES / "lora/publish.py"))

    assert capsys.readouterr().out == "adapter sql has version 43\n"
    assert [body["spec"] for body in patches(objects)] == [
        {
            "version": "43",
            "runID": None,
            "digest": None,
            "source": {"path": "/weights/step_{version}", "uri": None, "huggingFace": None},
        }
    ]


TRAINING = """
import sys, time
from pathlib import Path

run, code = Path(sys.argv[1]), int(sys.argv[2])
for step in (10, 20):
    folder = run / f"global_step{step}_hf"
    folder.mkdir()
    (folder / "model.safetensors").touch(mode=0o600)
    (folder / "tokenizer.json").write_text("{")  # the last file, half of it
    time.sleep(0.7)
    if step == 10:
        (folder / "tokenizer.json").write_text("{}")
        time.sleep(1.2)
sys.exit(code)
"""


@pytest.mark.parametrize("code", [0, 3])
async def test_a_model_is_published_when_the_training_has_saved_all_of_it(api, tmp_path, code):
    training, run_folder = tmp_path / "training.py", tmp_path / "run"
    training.write_text(TRAINING)
    words = (sys.executable, str(training), str(run_folder), str(code))

    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", EXAMPLES / "openrlhf/publish.py"),
        *(r"global_step(\d+)_hf", *words),
        env=environment(api, RUN_DIRECTORY=str(run_folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await done.communicate()

    assert done.returncode == code
    assert [line.partition(" after")[0] for line in output.decode().splitlines()] == [
        "step 10 serves"
    ]
    spec = api.objects.weights["spec"]
    folder = run_folder / "global_step10_hf"
    assert (spec["version"], spec["source"]["path"]) == ("10", str(folder))
    assert (folder / "model.safetensors").stat().st_mode & 0o444 == 0o444
