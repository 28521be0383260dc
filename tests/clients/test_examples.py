"""The callback in a real `transformers.Trainer`, against the RL API over a fake API server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.checkpoints import write_checkpoints
from tests.support.deltas import apply, metadata, read_tensors
from tests.support.environments import trainers_packages, worker_python
from tests.support.fake_cluster import TRAINER
from tests.support.pages import ROOT
from tests.support.rl_api import RlApi, rl_api

from fleet_worker.process.manifest import digest_in

TRAINERS = Path(__file__).parent / "trainers"


@pytest.fixture
async def api() -> AsyncIterator[RlApi]:
    """Its fleet serves version 0."""
    async with rl_api() as made:
        spec = {"fleetRef": {"name": "policy"}, "version": "0", "source": {"path": "/w/0"}}
        made.objects.make(spec)
        yield made


async def run(api: RlApi, program: Path, *arguments: str, **variables: str) -> str:
    """The output of a program, without its error output."""
    done = await asyncio.create_subprocess_exec(
        *(worker_python(), program, *arguments),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'client'}:{trainers_packages()}",
            "RLFLEET_API_URL": api.url,
            "RLFLEET_API_TOKEN": TRAINER,
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await done.communicate()
    assert done.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.long  # transformers alone takes ten seconds to import
async def test_a_trainer_saves_and_publishes_what_workers_of_another_user_can_read(
    api: RlApi, tmp_path: Path
) -> None:
    """safetensors writes files for their own user, and a trainer often runs as root."""
    program = TRAINERS / "callback_steps.py"
    run_folder = tmp_path / "run"

    printed = json.loads((await run(api, program, str(tmp_path))).splitlines()[-1])

    assert printed == {"user": os.geteuid(), "reports": 2, "applied": 4.0}
    assert {each.name for each in run_folder.iterdir()} == {".rlfleet-run", "step_2", "step_4"}
    written = {each.name: each.stat().st_mode for each in (run_folder / "step_4").iterdir()}
    assert {"config.json", "model.safetensors"} <= written.keys()
    assert {name for name, mode in written.items() if mode & 0o444 != 0o444} == set()
    for folder in (run_folder, run_folder / "step_4"):
        assert folder.stat().st_mode & 0o555 == 0o555
    spec = api.objects.weights["spec"]
    assert spec["source"]["path"] == str(run_folder / "step_4")
    assert spec["runID"] == (run_folder / ".rlfleet-run").read_text()


@pytest.mark.long  # as above
async def test_a_trainer_publishes_what_differs_from_the_step_before(
    api: RlApi, tmp_path: Path
) -> None:
    program = TRAINERS / "callback_steps.py"

    printed = json.loads((await run(api, program, str(tmp_path), "delta")).splitlines()[-1])

    assert printed["applied"] == 4.0
    steps = [tmp_path / "run" / name for name in ("step_2", "step_4")]
    assert [metadata(step).get("base_version") for step in steps] == [None, "2"]
    assert apply(read_tensors(steps[0]), steps[1]) == read_tensors(tmp_path / "last")
    assert api.objects.weights["spec"]["digest"] == digest_in(str(tmp_path / "last"))


async def test_tensors_of_torch_have_the_bytes_and_types_that_safetensors_writes(
    api: RlApi, tmp_path: Path
) -> None:
    printed = json.loads(await run(api, TRAINERS / "torch_tensors.py", str(tmp_path)))

    assert printed == {"tensors": 21, "differing": []}


@pytest.mark.long  # as above
async def test_the_example_publishes_deltas_and_every_fourth_version_in_full(
    api: RlApi, tmp_path: Path
) -> None:
    write_checkpoints({tmp_path / "base": {"seed": 1}})

    printed = await run(
        api,
        ROOT / "examples" / "deltas/train.py",
        MODEL_DIRECTORY=str(tmp_path / "base"),
        RUN_DIRECTORY=str(tmp_path / "run"),
    )

    assert [line.partition(",")[0] for line in printed.splitlines()] == [
        "step 1: full",
        "step 2: delta of 1",
        "step 3: delta of 2",
        "step 4: delta of 3",
        "step 5: full",
        "step 6: delta of 5",
    ]
    result = read_tensors(tmp_path / "run/step_1")
    for step in (2, 3, 4):
        result = apply(result, tmp_path / f"run/step_{step}")
    assert metadata(tmp_path / "run/step_6")["base_digest"] == digest_in(
        str(tmp_path / "run/step_5")
    )
    assert api.objects.weights["spec"]["version"] == "6"
