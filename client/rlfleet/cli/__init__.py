"""The command line, `rlfleet` and `kubectl rlfleet`. It needs the extra `rlfleet[cli]`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import PurePath
from typing import Any

_PLUGIN = "kubectl-rlfleet"
"""The name by which kubectl starts it for `kubectl rlfleet`."""
_INTERRUPTED = 130
"""The exit code after Ctrl-C, by which shells know it: 128 and the number of SIGINT."""
_NO_FILES = ":4"
"""Ends the completions for kubectl: the shell adds no names of files. Source: cobra, ShellCompDirectiveNoFileComp."""


def main() -> None:
    """Run the command line."""
    is_plugin = PurePath(sys.argv[0]).name == _PLUGIN
    with _interruptible():
        _app()(prog_name="kubectl rlfleet" if is_plugin else "rlfleet")


def complete_for_kubectl() -> None:
    """Print the completions of a command line for `kubectl rlfleet`, one on each line.

    Its name is `kubectl_complete-rlfleet`. Source: kubectl, "Extend kubectl with plugins", shell completion.
    """
    words = sys.argv[1:] or [""]
    # Typer prints this form for the shell fish.
    os.environ |= {
        "_RLFLEET_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": shlex.join(["rlfleet", *words]),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    found = StringIO()
    with _interruptible(), redirect_stdout(found), suppress(SystemExit):
        _app()(prog_name="rlfleet")
    lines = [line for line in found.getvalue().splitlines() if line]
    print("\n".join([*lines, _NO_FILES]))  # noqa: T201 - read by kubectl


@contextmanager
def _interruptible() -> Iterator[None]:
    """End without a traceback at Ctrl-C, which also comes while a shell waits for completions."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _app() -> Any:
    try:
        from rlfleet.cli.app import app  # noqa: PLC0415 - Typer is optional
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: {error.name} is missing: install the client with its extra cli, in a checkout with"
            " pip install './client[cli]'"
        )
    return app
