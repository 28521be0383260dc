"""The tables of `rlfleet watch` and the dashboard: one row for each worker, the last rollouts, and Events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.text import Text

from rlfleet.cli.live import Detail, WorkerRow
from rlfleet.words import seconds

COLUMNS = ("WORKER", "STATE", "VERSION", "RUNNING", "HELD", "TOKENS/S", "RESTARTS", "LAST PAUSE")
_LEFT = 3
"""Columns of words; the others are numbers, and end at one place."""
_COLOURS = {
    "serving": "green",
    "staging": "cyan",
    "pausing": "yellow",
    "paused": "yellow",
    "loading": "magenta",
    "resuming": "green",
    "joining": "blue",
}
_MOST_ROLLOUTS = 3
_RESULTS = {"Applied": "green", "Refused": "red", "Halted": "red"}


def worker_lines(workers: Sequence[WorkerRow]) -> list[Text]:
    """A line for each worker, below a line of headings; nothing without workers."""
    if not workers:
        return []
    rows = [worker_cells(one) for one in workers]
    widths = [max(len(row[place]) for row in (COLUMNS, *rows)) for place in range(len(COLUMNS))]
    lines = [Text(_aligned(COLUMNS, widths), style="bold")]
    for row in rows:
        line = Text(_aligned(row, widths))
        begin = 2 + widths[0] + 2
        line.stylize(
            _COLOURS.get(row[1], "red" if row[1][:1].isupper() else ""), begin, begin + len(row[1])
        )
        lines.append(line)
    return lines


def past_lines(detail: Detail) -> Iterator[list[Text]]:
    """The parts below the workers: the last rollouts, and Events. The newest come first."""
    if detail.history:
        yield [
            Text("Last rollouts", style="bold"),
            *(
                Text.assemble(
                    f"  {one.version}  ",
                    (one.result, _RESULTS.get(one.result, "yellow")),
                    f"{f' {one.reason}' if one.reason else ''}, {ago(one.started_at, detail.now)}, took "
                    f"{seconds(one.total_seconds)}, longest pause {seconds(one.max_worker_pause_seconds)}",
                )
                for one in detail.history[:_MOST_ROLLOUTS]
            ),
        ]
    if detail.events:
        yield [
            Text("Events", style="bold"),
            *(
                Text.assemble(
                    f"  {ago(one.at, detail.now)}  ",
                    (one.reason, "yellow" if one.is_warning else ""),
                    f"  {one.message}",
                )
                for one in detail.events
            ),
        ]


def worker_cells(row: WorkerRow) -> tuple[str, ...]:
    """The cells of one worker, below `COLUMNS`."""
    pod, figures, pause = row.pod, row.figures, row.last_pause_seconds
    state = pod.status if not pod.ready and pod.status != "Running" else ""
    version = pod.version
    if figures is not None:
        state = state or figures.phase or ""
        version = figures.version or version
        pause = figures.paused_seconds or pause
    return (
        pod.name,
        # A pod is ready while its worker pauses, too, which only the worker's figures say.
        state or ("ready" if pod.ready else "starting"),
        version or "-",
        _number(figures.running if figures else None),
        _number(figures.held if figures else None),
        _number(row.tokens_per_second),
        str(pod.restarts),
        seconds(pause),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        cell.ljust(width) if place < _LEFT else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  " + "  ".join(parts)


def ago(then: datetime | None, now: datetime) -> str:
    """A moment by its age."""
    return "-" if then is None else f"{seconds(max(0.0, round((now - then).total_seconds())))} ago"
