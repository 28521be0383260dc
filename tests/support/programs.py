"""Runs programs that must succeed, and reports what one that fails has written."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SHOWN = 4000


def written_by(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdin: str = "",
) -> str:
    """Return what a program writes to standard output.

    Errors:
        AssertionError: It failed. The message has the end of what it wrote.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        timeout=timeout,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-_SHOWN:]}"
    )
    return done.stdout
