"""The callback with real PyTorch and transformers, against the RL API over a fake API server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.environments import worker_python
from tests.support.fake_cluster import TRAINER
from tests.support.pages import ROOT
from tests.support.rl_api import RlApi, rl_api


@pytest.fixture
async def api() -> AsyncIterator[RlApi]:
    """Its fleet serves version 0."""
    async with rl_api() as made:
        spec = {"fleetRef": {"name": "policy"}, "version": "0", "source": {"path": "/w/0"}}
        made.objects.make(spec)
        yield made


async def run(api: RlApi, program: Path, *arguments: str) -> str:
    """The output of a program, without its error output."""
    done = await asyncio.create_subprocess_exec(
        *(worker_python(), program, *arguments),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "client"),
            "RLFLEET_API_URL": api.url,
            "RLFLEET_API_TOKEN": TRAINER,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await done.communicate()
    assert done.returncode == 0, errors.decode()
    return output.decode()


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


@pytest.mark.long  # transformers alone takes ten seconds to import
async def test_the_callback_saves_and_publishes_when_transformers_calls_it(
    api: RlApi, tmp_path: Path
) -> None:
    program = Path(__file__).parent / "trainers/callback_steps.py"

    printed = await run(api, program, str(tmp_path))

    assert json.loads(printed.splitlines()[-1]) == [2.0, 4.0]
    assert names(tmp_path) == {"step_2", "step_4"}
    assert {"config.json", "model.safetensors"} <= names(tmp_path / "step_4")
    assert api.objects.weights["spec"]["source"]["path"] == str(tmp_path / "step_4")
