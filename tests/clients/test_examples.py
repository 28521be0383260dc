"""The training loop of `examples`, with real PyTorch, against the RL API over a fake API server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.support.environments import worker_python
from tests.support.fake_cluster import TRAINER
from tests.support.pages import ROOT
from tests.support.rl_api import rl_api

PROGRAM = "pytorch/train.py"


async def test_a_training_loop_publishes_what_it_has_saved(tmp_path: Path) -> None:
    async with rl_api() as api:
        spec = {"fleetRef": {"name": "policy"}, "version": "0", "source": {"path": "/w/0"}}
        api.objects.make(spec)
        done = await asyncio.create_subprocess_exec(
            *(worker_python(), ROOT / "examples" / PROGRAM),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "client"),
                "RLFLEET_API_URL": api.url,
                "RLFLEET_API_TOKEN": TRAINER,
                "RUN_DIRECTORY": str(tmp_path),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await done.communicate()

    assert done.returncode == 0, output.decode()
    assert output.decode().splitlines() == [
        "step 2 serves after 1.9 s", "0.0", "step 4 serves after 1.9 s", "0.0",
    ]  # fmt: skip
    assert (tmp_path / "step_4/model.safetensors").stat().st_size > 0
    assert api.objects.weights["spec"]["source"]["path"] == str(tmp_path / "step_4")
