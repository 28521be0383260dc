"""`rlfleet record`: replies of workers in the form that the provenance audit reads."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from rlfleet.cli import lines, show
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.errors import IncompleteReply
from rlfleet.sampling import record as records_of


def record(
    replies: Annotated[
        str,
        typer.Argument(help="A file with one reply as JSON in each line; - for standard input."),
    ] = "-",
) -> None:
    """Print a record of each choice of replies, for `rlfleet audit` and the worker's audit."""
    incomplete = 0
    for number, line in lines.read(replies):
        try:
            made = records_of(_reply(line))
        except IncompleteReply as error:
            incomplete += 1
            show.errors().print(f"[red]error:[/] line {number}: {escape(str(error))}")
            continue
        for each in made:
            print(json.dumps(each), flush=True)  # noqa: T201 - rich would wrap it
    if incomplete:
        raise typer.Exit(CHECKS_FAILED)


def _reply(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("choices"), list):
        raise IncompleteReply(
            "the line is not a reply with choices; write each reply as JSON in one line"
        )
    return found
