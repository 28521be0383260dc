"""A rollout as a notebook shows it: bars for its phases, and the counts. Pure."""

from __future__ import annotations

from html import escape

from rlfleet.charts import COLOURS, WIDTH, Bar, Row, chart
from rlfleet.words import seconds
from rlfleet_resources.weights_status import RolloutTimings

_STYLE = COLOURS.replace(":root", ".rlfleet").replace("svg ", ".rlfleet svg ")
_STYLE += ".rlfleet { --ink: currentColor; }"
"""Only for this output: a notebook has colours of its own, dark ones also in a browser with light ones."""


def html(title: str, notes: tuple[str, ...], timings: RolloutTimings) -> str:
    """A fragment of HTML. `notes`: sentences below the bars; empty ones are left out."""
    bars = chart(rows, "Durations of the phases") if (rows := phase_rows(timings)) else ""
    below = "".join(f"<p>{escape(note)}</p>" for note in notes if note)
    return (
        f'<div class="rlfleet" style="max-width: {WIDTH}px"><style>{_STYLE}</style>'
        f"<strong>{escape(title)}</strong>{bars}{below}</div>"
    )


def phase_rows(timings: RolloutTimings) -> list[Row]:
    """The phases that have ended, one after the other; none before the first one."""
    lengths = {
        "Staging": timings.stage_seconds,
        "Pausing": timings.pause_seconds,
        "Loading": timings.load_seconds,
        "Resuming": timings.resume_seconds,
    }
    whole, begin, rows = sum(lengths.values()), 0.0, list[Row]()
    for phase, length in lengths.items():
        if length:
            bar = Bar(begin / whole, length / whole, phase.lower())
            rows.append(Row(phase, (bar,), seconds(length)))
        begin += length
    return rows
