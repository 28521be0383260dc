"""Running programs: short ones to their end, and killing what was started here and only that."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster.errors import CommandError


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout_seconds: float | None = 120.0,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output as text.

    Errors:
        CommandError: it ended with another code than 0 (unless `check` is off), took longer than
            `timeout_seconds`, or is not there.
    """
    words = [str(word) for word in argv]
    shown = " ".join(words)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=cwd,
            # So that all of it can be killed: nsenter leaves its child behind, which would keep
            # our pipes open.
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(f"{shown}: {error.strerror}") from error
    try:
        output, errors = process.communicate(stdin, timeout_seconds)
    except subprocess.TimeoutExpired as error:
        kill_group(process)
        raise CommandError(f"{shown}: not done after {timeout_seconds:.0f} s") from error
    except BaseException:
        kill_group(process)
        raise
    if check and process.returncode != 0:
        message = (errors.strip() or output.strip())[-4000:]
        raise CommandError(f"{shown}: exit code {process.returncode}\n{message}")
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process that leads a session of its own, with all that it started, and reap it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # what it did not read any more
                stream.close()


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without proxy variables: everything of a cluster is on this machine."""
    names = {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy"}
    return {key: value for key, value in environment.items() if key.lower() not in names}
