"""One rollout as a self-contained HTML page: pure, from the statuses alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from rlfleet.cli.duration import seconds
from rlfleet.cli.view import PastRollout, RolloutView, rollout_view, rollouts
from rlfleet.resources import Condition, InferenceFleet, Laggard, WeightVersion

PHASES = ("Staging", "Pausing", "Loading", "Resuming")
_LABEL, _CHART, _VALUE, _ROW = 110, 520, 90, 30
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --line: #d9d9e0; --paper: #fff;
  --staging: #0b68cb; --pausing: #a35200; --loading: #8145b5; --resuming: #18794e;
  --applied: #18794e; --halted: #ce2c31; --superseded: #8b8d98; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #b0b4ba; --line: #43484e;
  --paper: #18191b; --staging: #70b8ff; --pausing: #ffa057; --loading: #d19dff;
  --resuming: #3dd68c; --applied: #3dd68c; --halted: #ff9592; --superseded: #797b86; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .2rem 0; color: var(--dim); }
dl { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.5rem 0 0; }
dt { color: var(--dim); font-size: .85rem; } dd { margin: 0; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; font-size: .85rem; color: var(--dim); }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
svg line { stroke: var(--line); }
"""


def page(weights: WeightVersion, fleet: InferenceFleet | None, now: datetime) -> str:
    """The rollout of the desired version, with those before it. `fleet`: None if it is missing."""
    view, status = rollout_view(weights, now), weights.status
    title = f"{view.name}: version {view.desired}"
    conditions = [(f"WeightVersion {view.name}", one) for one in status.conditions]
    conditions += [(f"fleet {view.fleet}", one) for one in fleet.status.conditions] if fleet else []
    lagging = {one.pod: one for one in (fleet.status.laggards if fleet else ())}
    lagging |= {one.pod: one for one in status.laggards}
    parts = [
        f"<h1>{escape(title)}</h1>",
        _subtitle(view, weights, now),
        _facts(view, weights),
        "<h2>Phases</h2>",
        _waterfall(view, weights),
        "<h2>Past rollouts</h2>",
        _past(rollouts(weights)),
        "<h2>Lagging workers</h2>",
        _lagging([*lagging.values()]),
        "<h2>Conditions</h2>",
        _conditions(conditions),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _subtitle(view: RolloutView, weights: WeightVersion, now: datetime) -> str:
    phase = view.phase if view.observed else "not seen by the operator yet"
    parts = [f"namespace {view.namespace}", f"fleet {view.fleet}", f"phase {phase}"]
    if view.adapter:
        parts.insert(2, f"adapter {view.adapter}")
    if view.run_id:
        parts.insert(0, f"run {view.run_id}")
    if weights.status.started_at:
        parts.append(f"began {_moment(weights.status.started_at)}")
    return f"<p>{escape(', '.join(parts))}. Seen {_moment(now)}.</p>"


def _facts(view: RolloutView, weights: WeightVersion) -> str:
    timings, effect = weights.status.timings, weights.status.effect
    facts = [
        ("Applied version", view.applied or "none"),
        ("Workers with the version", view.workers or "0"),
        ("Total", seconds(timings.total_seconds) if timings.total_seconds else "-"),
        ("Longest pause of a worker", seconds(timings.max_worker_pause_seconds)),
    ]
    if view.failed:
        facts.append(("Workers that failed", str(view.failed)))
    if effect is not None and effect.max_changed_share is not None:
        facts.append(("Changed elements", f"{effect.max_changed_share:.1%}"))
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f"<dl>{''.join(items)}</dl>"


def _waterfall(view: RolloutView, weights: WeightVersion) -> str:
    """The phases, end to end. The present one lasts until now."""
    timings = weights.status.timings
    lengths = [
        timings.stage_seconds, timings.pause_seconds, timings.load_seconds, timings.resume_seconds,
    ]  # fmt: skip
    running = PHASES.index(view.phase) if view.observed and view.phase in PHASES else None
    if running is not None:
        lengths[running] = max(lengths[running], view.phase_seconds or 0.0)
    whole = sum(lengths)
    if not whole:
        return "<p>The operator has measured no phase of this rollout.</p>"
    bars, begin = [], 0.0
    for number, (phase, length) in enumerate(zip(PHASES, lengths, strict=True)):
        value = seconds(length) + (" so far" if number == running else "")
        bars.append((phase, begin / whole, length / whole, f"var(--{phase.lower()})", value))
        begin += length
    note = (
        "Phases are drawn end to end. With Rolling and Canary, workers pass through them at "
        "different times."
    )
    return f"{_bars(bars, 'Durations of the phases')}<p>{note}</p>"


def _past(entries: Sequence[PastRollout]) -> str:
    if not entries:
        return "<p>No rollout has ended yet.</p>"
    longest = max(entry.total_seconds for entry in entries) or 1.0
    bars = [
        (
            entry.version,
            0.0,
            entry.total_seconds / longest,
            f"var(--{entry.result.lower()})",
            seconds(entry.total_seconds),
        )
        for entry in reversed(entries)
    ]
    rows = [
        [
            entry.version,
            entry.result,
            _moment(entry.started_at),
            seconds(entry.total_seconds),
            seconds(entry.max_worker_pause_seconds),
            entry.requested_by or "-",
            entry.reason or "-",
        ]
        for entry in entries
    ]
    columns = ["Version", "Result", "Began", "Took", "Longest pause", "Requested by", "Reason"]
    return _bars(bars, "Durations of the past rollouts") + _table(columns, rows)


def _lagging(found: Sequence[Laggard]) -> str:
    if not found:
        return "<p>No worker lags.</p>"
    rows = [[one.pod, one.state, one.version or "-", one.reason, one.message] for one in found]
    return _table(["Worker", "State", "Version", "Reason", "Message"], rows)


def _conditions(found: Sequence[tuple[str, Condition]]) -> str:
    if not found:
        return "<p>The operator has reported no condition.</p>"
    rows = [
        [of, c.type, c.status, c.reason, c.message, _moment(c.last_transition_time)]
        for of, c in found
    ]
    return _table(["Object", "Type", "Status", "Reason", "Message", "Since"], rows)


def _bars(bars: Sequence[tuple[str, float, float, str, str]], title: str) -> str:
    """Horizontal bars: label, begin and length as shares of the width, colour, value."""
    width, height = _LABEL + _CHART + _VALUE, _ROW * len(bars)
    drawn = []
    for number, (label, begin, length, colour, value) in enumerate(bars):
        top, left = number * _ROW, _LABEL + begin * _CHART
        long = max(1.5, length * _CHART)
        drawn.append(
            f'<text x="0" y="{top + 20}">{escape(label[:15])}</text>'
            f'<rect x="{left:.1f}" y="{top + 6}" width="{long:.1f}" height="18" rx="2" '
            f'style="fill: {escape(colour)}"/>'
            f'<text x="{left + long + 6:.1f}" y="{top + 20}">{escape(value)}</text>'
        )
    axis = f'<line x1="{_LABEL}" y1="0" x2="{_LABEL}" y2="{height}"/>'
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img"><title>{title}</title>'
        f"{axis}{''.join(drawn)}</svg>"
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
