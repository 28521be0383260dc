"""Scripts that run with the real torch or vLLM, in a process of their own."""

from __future__ import annotations

import json
from typing import Any

from tests.support.environments import engine_environment, worker_python
from tests.support.programs import written_by

ENGINE = """
import sys
from vllm import LLM
one, other = sys.argv[1:]
engine = LLM(
    model=one,
    worker_extension_cls="fleet_worker.engine.extension.WorkerExtension",
    enforce_eager=True,
    kv_cache_memory_bytes=1 << 26,
    block_size=32,
    dtype="bfloat16",
    max_model_len=512,
    max_num_seqs=4,
)
"""
"""Begins a script with an offline engine on `one` of the two checkpoints that are its arguments."""


LOADS = """
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.engine.vllm import load_arguments
def load_of(folder, started=False, casts=None):
    checkpoint = open_checkpoint(str(folder), None)
    checkpoint.hashes(lambda: None)
    checkpoint.is_started_on = started
    checkpoint.casts = casts or {}
    return load_arguments(checkpoint)
"""
"""Defines the arguments of a load of a directory's files, which are compared with their digests."""


def output_of(script: str, *arguments: str, stdin: str = "", python: str = "") -> Any:
    """The JSON that a script prints after `result `. `python`: instead of the worker's interpreter."""
    command = [python or worker_python(), "-c", script, *arguments]
    printed = written_by(command, stdin=stdin, timeout=400, env=engine_environment())
    # vLLM writes to standard output, too.
    (result,) = (line for line in printed.splitlines() if line.startswith("result "))
    return json.loads(result.removeprefix("result "))
