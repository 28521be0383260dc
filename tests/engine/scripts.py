"""Scripts that run with the real torch or vLLM, in a process of their own."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.environments import REPOSITORY, engine_environment, worker_python
from tests.support.programs import written_by

from stack.offline import WRITE, as_input

_SECONDS = 400
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


_PREPARED = """
import json, os, sys
ended = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import transformers, vllm
from vllm import LLM, SamplingParams
for line in sys.stdin:
    script, sys.argv[1:], stdin, output = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=ended, flush=True)
else:
    sys.exit()
os.dup2(os.open(output, os.O_WRONLY | os.O_TRUNC), 1)
os.dup2(1, 2)
sys.stdin = open(stdin)
exec(script)
"""


class _Prepared:
    """A process that has imported vLLM and runs each script in a fork of itself: an import takes 11 s."""

    def __init__(self, folder: Path) -> None:
        self._stdin, self._output = folder / "stdin", folder / "output"
        with self._output.open("w") as imports:
            self._process = subprocess.Popen(
                [worker_python(), "-c", _PREPARED],
                env=engine_environment(),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=imports,
                start_new_session=True,
            )

    def run(self, script: str, arguments: Sequence[str], stdin: str) -> str:
        """Standard output and standard error of the script."""
        requests, ended = self._process.stdin, self._process.stdout
        assert requests is not None
        assert ended is not None
        self._stdin.write_text(stdin)
        files = (str(self._stdin), str(self._output))
        requests.write(json.dumps([script, arguments, *files]) + "\n")
        requests.flush()
        in_time, _, _ = select.select([ended], [], [], _SECONDS)
        status = ended.readline().strip() if in_time else "no status in time"
        written = self._output.read_text()
        if status != "0":
            self.end()
            _prepared.cache_clear()
            raise AssertionError(f"a script ended with {status}:\n{written[-4000:]}")
        return written

    def end(self) -> None:
        """End it, and the script that it runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@cache
def _prepared() -> _Prepared:
    folder = TemporaryDirectory(prefix="prepared-")
    made = _Prepared(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(made.end)
    return made


def output_of(script: str, *arguments: str, stdin: str = "", python: str = "") -> Any:
    """The JSON that a script prints after `result `.

    `python`: runs it from its beginning, instead of a fork of a process that has imported vLLM.
    """
    if python:
        command = [python, "-c", script, *arguments]
        printed = written_by(command, stdin=stdin, timeout=_SECONDS, env=engine_environment())
    else:
        printed = _prepared().run(script, arguments, stdin)
    # vLLM writes to standard output, too.
    (result,) = (line for line in printed.splitlines() if line.startswith("result "))
    return json.loads(result.removeprefix("result "))


def write_checkpoints(wanted: Mapping[Path, Mapping[str, Any]]) -> None:
    """As `stack.offline.write_checkpoints`, whose process imports torch and transformers each time."""
    script = f"{WRITE}\nprint('result null')"
    output_of(script, str(REPOSITORY / "tools"), stdin=as_input(wanted))
