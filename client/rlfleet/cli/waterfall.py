"""The waterfall of one rollout, by phase and by worker on one time axis, and as a picture: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from rlfleet.charts import COLOURS, WIDTH, Bar, Row, drawn, height
from rlfleet.cli.pods import number_in
from rlfleet.cli.spans import DONE, Span
from rlfleet.cli.view import PhaseView
from rlfleet.words import seconds

MOST_WORKERS = 40
_NO_CALLS = (
    "The logs have no call to a worker in this rollout, or were not read. Workers log their loads, and "
    "the operator logs every call with --log-level=DEBUG."
)
_EVERY_CALL = "Between the bars of a worker, it waits for the others."
_LOADS_ONLY = (
    "Workers have logged their loads. The other calls are not known: the operator logs them with "
    "--log-level=DEBUG."
)
_COLOURS = {
    "stage": "staging",
    "pause": "pausing",
    "load": "loading",
    "apply": "loading",
    "resume": "resuming",
    "stage-adapter": "staging",
    "adapter": "loading",
}
_MARGIN = 16
_FONT = "system-ui, sans-serif"


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Phases and workers on one axis, which begins with the rollout.

    Fields:
        rows: the phases, and below them the workers; none if nothing was measured.
        seconds: that the axis is long.
        note: what the bars of the workers show, and what is not known of them.
    """

    rows: tuple[Row, ...]
    seconds: float
    note: str


def waterfall(
    began_at: datetime | None, phases: Sequence[PhaseView], calls: Sequence[Span]
) -> Waterfall:
    """The rollout that began at a moment. Phases are drawn end to end, as far as they have begun."""
    begun = [one for one in phases if one.seconds or one.running]
    ends = [(one.ended_at - began_at).total_seconds() for one in calls] if began_at else []
    whole = max([sum(one.seconds for one in begun), *ends])
    if whole <= 0:
        return Waterfall((), 0.0, _NO_CALLS)
    workers = _worker_rows(calls, began_at, whole) if began_at else []
    number = len({one.pod for one in calls})
    note = (
        f"The {len(workers)} of {number} workers that ended last. " if number > len(workers) else ""
    )
    if not workers:
        note = _NO_CALLS
    elif {one.operation for one in calls} <= {"load", "adapter"}:
        note += _LOADS_ONLY
    else:
        note += _EVERY_CALL
    return Waterfall((*_phase_rows(begun, whole), *workers), whole, note)


def _phase_rows(phases: Sequence[PhaseView], whole: float) -> list[Row]:
    rows, begin = list[Row](), 0.0
    for one in phases:
        bar = Bar(begin / whole, one.seconds / whole, one.phase.lower())
        rows.append(
            Row(one.phase, (bar,), seconds(one.seconds) + (" so far" if one.running else ""))
        )
        begin += one.seconds
    return rows


def _worker_rows(calls: Sequence[Span], begin: datetime, whole: float) -> list[Row]:
    """The calls to each worker, of those that ended last."""
    by_pod: dict[str, list[Span]] = {}
    for one in calls:
        by_pod.setdefault(one.pod, []).append(one)

    def since(moment: datetime) -> float:
        return max(0.0, (moment - begin).total_seconds())  # clocks differ

    def last(pod: str) -> float:
        return max(since(one.ended_at) for one in by_pod[pod])

    chosen = set(sorted(by_pod, key=last, reverse=True)[:MOST_WORKERS])
    rows = []
    for pod in sorted(chosen, key=number_in):
        bars = tuple(
            Bar(
                since(one.began_at) / whole,
                (since(one.ended_at) - since(one.began_at)) / whole,
                _COLOURS[one.operation] if one.outcome == DONE else "halted",
            )
            for one in by_pod[pod]
        )
        failed = [one.outcome for one in by_pod[pod] if one.outcome != DONE]
        rows.append(Row(pod, bars, " ".join([f"at {seconds(last(pod))}", *failed[-1:]])))
    return rows


def picture(title: str, subtitle: str, found: Waterfall) -> str:
    """A waterfall as one SVG that needs nothing else."""
    top = 54
    parts = [drawn(found.rows, top, found.seconds)] if found.rows else []
    below = top + height(found.rows, found.seconds if found.rows else None) + 14
    parts.append(f'<text class="dim" x="0" y="{below}">{escape(found.note)}</text>')
    width, high = WIDTH + 2 * _MARGIN + 90, below + 2 * _MARGIN
    style = (
        f"{COLOURS}svg {{ font-family: {_FONT}; }} svg .title {{ font-size: 20px; }} "
        "svg .dim { fill: var(--dim); font-size: 11px; }"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect width="{width}" height="{high}" rx="8" style="fill: var(--paper)"/>'
        f'<g transform="translate({_MARGIN} 8)"><text class="title" x="0" y="20">{escape(title)}</text>'
        f'<text class="dim" x="0" y="40">{escape(subtitle)}</text>{"".join(parts)}</g></svg>\n'
    )
