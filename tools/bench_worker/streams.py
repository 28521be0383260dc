"""Processor time of the API server for each token, with as many streams as a GPU has.

On a GPU one Python process serves all streams of a worker, so its processor time is the limit of its
tokens per second. `in_the_server/fake_engine.py` measures it, in the environment of the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envs
from bench_worker.servers import ENVIRONMENT

SIZES = (64, 256)
_SCRIPT = Path(__file__).parent / "in_the_server" / "fake_engine.py"


def measured(model: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of request, as it is measured."""
    command = [str(envs.interpreter_of("worker")), str(_SCRIPT), str(model), str(rounds)]
    own = {"PYTHONPATH": str(envs.app_folder()), "OMP_NUM_THREADS": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLFLEET_", "VLLM_", "HF_"))}
    with subprocess.Popen(
        [*command, *map(str, SIZES)],
        env=kept | ENVIRONMENT | own | {"VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
