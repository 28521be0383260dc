"""Processor time of the API server for each token, with as many streams as a GPU has.

On a GPU one Python process serves all streams of a worker, so its processor time is the limit of its
tokens per second. `in_the_server/fake_engine.py` measures it, in the environment of the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envs
from bench_scale.profile import FOLDER, Profile
from bench_worker.servers import ENVIRONMENT, interpreter

SIZES = (64, 256)
FLAME_GRAPH = FOLDER / "streams-flame.svg"
_SCRIPT = Path(__file__).parent / "in_the_server" / "fake_engine.py"


def measured(model: Path, pairs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of request, as it is measured."""
    with _server(model, pairs, *SIZES) as process:
        yield from _rows(process)


def profiled(model: Path) -> None:
    """Write a flame graph of the server while 256 completions stream through the worker."""
    title = f"The API server with {SIZES[-1]} streams through the worker, on a fake engine"
    with _server(model, 0, SIZES[-1]) as process:
        rows = _rows(process)
        next(rows)  # it has started
        with Profile(process.pid, FLAME_GRAPH, title=title):
            list(rows)


@contextlib.contextmanager
def _server(model: Path, pairs: int, *sizes: int) -> Iterator[subprocess.Popen[str]]:
    numbers = map(str, (pairs, *sizes))
    command = [interpreter(), str(_SCRIPT), str(model), *numbers]
    own = {"PYTHONPATH": str(envs.app_folder()), "OMP_NUM_THREADS": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLFLEET_", "VLLM_", "HF_"))}
    environment = kept | ENVIRONMENT | own | {"VLLM_LOGGING_LEVEL": "ERROR"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _rows(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None  # noqa: S101 - for the type checker
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
