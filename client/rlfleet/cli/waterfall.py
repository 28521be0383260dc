"""The waterfall of one rollout, by phase and by worker, and as a picture: pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlfleet.charts import COLOURS, ROW, WIDTH, Bar, Row, drawn
from rlfleet.cli.spans import DONE, Span
from rlfleet.cli.view import PhaseView
from rlfleet.words import seconds

MOST_WORKERS = 40
NO_CALLS = (
    "The logs have no call to a worker in this rollout, or were not read. Workers log their loads, and "
    "the operator logs every call with --log-level=DEBUG."
)
WORKERS_NOTE = "Each bar is a call, from its start to its answer. Between bars, the worker waits for the others."
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


def phase_rows(phases: Sequence[PhaseView]) -> list[Row]:
    """The phases, end to end; none if the operator has measured none."""
    whole = sum(one.seconds for one in phases)
    rows, begin = list[Row](), 0.0
    for one in phases if whole else ():
        bar = Bar(begin / whole, one.seconds / whole, one.phase.lower())
        rows.append(
            Row(one.phase, (bar,), seconds(one.seconds) + (" so far" if one.running else ""))
        )
        begin += one.seconds
    return rows


def worker_rows(calls: Sequence[Span]) -> list[Row]:
    """The calls to each worker, of those that ended last."""
    by_pod: dict[str, list[Span]] = {}
    for one in calls:
        by_pod.setdefault(one.pod, []).append(one)
    if not by_pod:
        return []
    begin = min(one.began_at for one in calls)
    whole = (max(one.ended_at for one in calls) - begin).total_seconds() or 1.0

    def last(pod: str) -> float:
        return max((one.ended_at - begin).total_seconds() for one in by_pod[pod])

    chosen = set(sorted(by_pod, key=last, reverse=True)[:MOST_WORKERS])
    rows = []
    for pod in sorted(chosen, key=_ordinal):
        bars = tuple(
            Bar(
                (one.began_at - begin).total_seconds() / whole,
                (one.ended_at - one.began_at).total_seconds() / whole,
                _COLOURS[one.operation] if one.outcome == DONE else "halted",
            )
            for one in by_pod[pod]
        )
        failed = [one.outcome for one in by_pod[pod] if one.outcome != DONE]
        rows.append(Row(pod, bars, " ".join([seconds(last(pod)), *failed[-1:]])))
    return rows


def picture(title: str, subtitle: str, phases: Sequence[PhaseView], calls: Sequence[Span]) -> str:
    """Both waterfalls as one SVG that needs nothing else."""
    parts, top = list[str](), 64
    workers = worker_rows(calls)
    for heading, rows in (("Phases", phase_rows(phases)), ("Workers", workers)):
        if rows:
            parts += [f'<text class="part" x="0" y="{top}">{heading}</text>', drawn(rows, top + 10)]
            top += 10 + ROW * len(rows) + 34
    note = WORKERS_NOTE if workers else NO_CALLS
    parts.append(f'<text class="dim" x="0" y="{top - 10}">{escape(note)}</text>')
    width, height = WIDTH + 2 * _MARGIN + 90, top + _MARGIN
    style = (
        f"{COLOURS}svg {{ font-family: {_FONT}; }} svg .title {{ font-size: 20px; }} "
        "svg .part { font-weight: 600; } svg .dim { fill: var(--dim); font-size: 11px; }"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect width="{width}" height="{height}" rx="8" style="fill: var(--paper)"/>'
        f'<g transform="translate({_MARGIN} 8)"><text class="title" x="0" y="20">{escape(title)}</text>'
        f'<text class="dim" x="0" y="40">{escape(subtitle)}</text>{"".join(parts)}</g></svg>\n'
    )


def _ordinal(pod: str) -> tuple[int, str]:
    number = pod.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, pod)
