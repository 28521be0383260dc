"""Records where the operator spends its time, as a flame graph."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

import envs

FOLDER = envs.REPOSITORY / "docs/images"
_RATE = 250
_TITLE = re.compile(r'(<text id="title"[^>]*>)[^<]*')
_STOP_SECONDS = 60.0


def flame_graph_of(workers: int) -> Path:
    """The file of one size's flame graph."""
    return FOLDER / f"scale-flame-{workers}.svg"


class Profile:
    """Samples one process while it is entered, and writes the flame graph at the end.

    py-spy reads the memory of another process, which Linux allows root, and a parent where
    `kernel.yama.ptrace_scope` is 0. Source: py-spy's README.
    """

    def __init__(self, pid: int, target: Path, *, title: str) -> None:
        self._target = target
        self._command = [
            str(envs.interpreter_of("profile").parent / "py-spy"),
            *("record", "--pid", str(pid), "--rate", str(_RATE), "--output", str(target)),
            *("--format", "flamegraph", "--threads"),
        ]
        self._title = title
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None  # noqa: S101 - for the type checker
        self._process.send_signal(signal.SIGINT)
        try:
            output = self._process.communicate(timeout=_STOP_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            output = self._process.communicate()[0]
        if self._process.returncode or not self._target.exists():
            raise RuntimeError(f"py-spy wrote no flame graph: {output[-1000:]}")
        drawn = titled(self._target.read_text(), self._title)
        self._target.write_text(drawn.rstrip() + "\n")


def titled(drawn: str, title: str) -> str:
    """The flame graph with this title, instead of a command line with paths of this machine."""
    return _TITLE.sub(lambda found: f"{found[1]}{escape(title)}", drawn, count=1)
