"""The command line, `rlfleet` and `kubectl rlfleet`. It needs the extra `rlfleet[cli]`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from rlfleet.cli.app import app  # noqa: PLC0415 - Typer is optional
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is missing: run pip install 'rlfleet[cli]'")
    app(prog_name="rlfleet")
