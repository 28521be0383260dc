"""Prints checks, and ends with the exit code that they ask for."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.markup import escape

from rlfleet.cli import show
from rlfleet.cli.checks import CHECKS_FAILED, Check, Result
from rlfleet.cli.options import Output

_COLOURS = {Result.OK: "green", Result.WARN: "yellow", Result.FAIL: "red"}


def report(checks: Sequence[Check], output: Output) -> None:
    """Print the checks. Errors: typer.Exit with `CHECKS_FAILED` if a check has failed."""
    show.show(checks, output, lambda: _render(checks))
    if any(check.result is Result.FAIL for check in checks):
        raise typer.Exit(CHECKS_FAILED)


def _render(checks: Sequence[Check]) -> None:
    """Print one line for each check, with the remedy below."""
    console = show.console()
    for check in checks:
        result = f"[{_COLOURS[check.result]}]{check.result:<4}[/]"
        console.print(f"{result}  {escape(check.subject)}: {escape(check.message)}")
        if check.remedy:
            console.print(f"      → {escape(check.remedy)}")
