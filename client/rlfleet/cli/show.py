"""Print tables, JSON and YAML. A pipe gets no colours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from rlfleet.cli.options import Output
from rlfleet.words import plural, seconds
from rlfleet_resources.base import printable

__all__ = ["coloured", "console", "data", "errors", "plural", "seconds", "show", "table"]
_WIDE_ENOUGH = 1000
COLOURS = {
    "True": "green",
    "Applied": "green",
    "False": "red",
    "Halted": "red",
    "Refused": "red",
    "Unknown": "yellow",
    "Suspended": "yellow",
    "Superseded": "yellow",
}


class _Console(Console):
    """Shows by its escape what a terminal would obey: paths and other texts of objects may hold anything."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """See `Console`."""
        for each in super().render(renderable, options):
            text = "\n".join(map(printable, each.text.split("\n")))
            yield each if each.control or text == each.text else each._replace(text=text)


def console() -> Console:
    """Standard output. Columns are never cut, as with kubectl: a narrow terminal wraps lines."""
    return _Console(highlight=False, soft_wrap=True, width=_WIDE_ENOUGH)


def errors() -> Console:
    """Standard error."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table like those of kubectl; known words have colours."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=True)
    for row in rows:
        made.add_row(*(coloured(cell) for cell in row))
    return made


def coloured(cell: str) -> str:
    """A cell as markup, as wide as it will be shown."""
    colour = COLOURS.get(cell)
    return f"[{colour}]{escape(cell)}[/]" if colour else escape(printable(cell)) or "-"


def data(found: BaseModel | Sequence[BaseModel], output: Output) -> None:
    """Print the fields as JSON or YAML, with the names of the CRDs."""
    plain = (
        _plain(found) if isinstance(found, BaseModel) else {"items": [_plain(one) for one in found]}
    )
    print(  # noqa: T201 - rich would wrap and colour it
        json.dumps(plain, indent=2)
        if output is Output.JSON
        else yaml.safe_dump(plain, sort_keys=False).rstrip()
    )


def show(
    found: BaseModel | Sequence[BaseModel], output: Output, render: Callable[[], None]
) -> None:
    """Print in the form that the user wants. `render`: prints the table."""
    if output in {Output.JSON, Output.YAML}:
        data(found, output)
    else:
        render()


def _plain(found: BaseModel) -> dict[str, Any]:
    return found.model_dump(mode="json", by_alias=True)
