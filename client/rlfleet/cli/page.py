"""One rollout as a self-contained HTML page: pure, from the statuses alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from rlfleet.charts import COLOURS, Bar, Row, chart
from rlfleet.cli.spans import Span
from rlfleet.cli.view import RolloutView, fleet_view, rollout_view
from rlfleet.cli.waterfall import NO_CALLS, WORKERS_NOTE, phase_rows, worker_rows
from rlfleet.resources import Condition, HistoryEntry, InferenceFleet, Laggard, WeightVersion
from rlfleet.words import seconds

_STYLE = f"""{COLOURS}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin: 0; }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
p {{ margin: .2rem 0; color: var(--dim); }}
dl {{ display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.5rem 0 0; }}
dt {{ color: var(--dim); font-size: .85rem; }} dd {{ margin: 0; font-size: 1.25rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }}
td:last-child {{ min-width: 6rem; }}
th {{ font-weight: 600; font-size: .85rem; color: var(--dim); }}
svg {{ width: 100%; height: auto; }}
"""


def page(
    weights: WeightVersion, fleet: InferenceFleet | None, calls: Sequence[Span], now: datetime
) -> str:
    """The rollout of the desired version, with those before it. `fleet`: None if it is missing."""
    view, status = rollout_view(weights, now), weights.status
    title = f"{view.name}: version {view.desired}"
    conditions = [(f"WeightVersion {view.name}", one) for one in status.conditions]
    lagging = {one.pod: one for one in (fleet.status.laggards if fleet else ())}
    lagging |= {one.pod: one for one in status.laggards}
    return _html(
        title,
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(subtitle(view, weights, now))}</p>",
        _facts(view, weights),
        "<h2>Phases</h2>",
        _phases(view),
        "<h2>Workers</h2>",
        _workers(calls),
        "<h2>Past rollouts</h2>",
        _past(weights.status.history),
        *_last_parts(fleet, [*lagging.values()], conditions),
    )


def page_of_fleet(fleet: InferenceFleet, now: datetime) -> str:
    """A fleet without a WeightVersion, which a trainer drives: what it serves now."""
    view = fleet_view(fleet, [], now)
    title = f"{view.name}: fleet"
    driver = "driven by a trainer" if fleet.is_external else "without a WeightVersion"
    rows = [
        [one.version, one.run_id or "-", one.digest or "-", str(one.workers)]
        for one in view.versions
    ]
    served = _table(["Version", "Run", "Digest", "Workers"], rows) if rows else "<p>None.</p>"
    return _html(
        title,
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(f'namespace {view.namespace}, {driver}. Seen {moment(now)}.')}</p>",
        _list([("Workers that serve", f"{view.workers.serving}/{view.replicas}")]),
        "<h2>Served versions</h2>",
        served,
        *_last_parts(fleet, view.lagging, []),
    )


def _html(title: str, *parts: str) -> str:
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _last_parts(
    fleet: InferenceFleet | None,
    lagging: Sequence[Laggard],
    conditions: Sequence[tuple[str, Condition]],
) -> list[str]:
    of_fleet = (
        [(f"fleet {fleet.metadata.name}", c) for c in fleet.status.conditions] if fleet else []
    )
    return [
        "<h2>Lagging workers</h2>",
        _lagging(lagging),
        "<h2>Conditions</h2>",
        _conditions([*conditions, *of_fleet]),
    ]


def subtitle(view: RolloutView, weights: WeightVersion, now: datetime) -> str:
    """Where the rollout is, and when."""
    phase = view.phase if view.observed else "not seen by the operator yet"
    parts = [f"namespace {view.namespace}", f"fleet {view.fleet}", f"phase {phase}"]
    if view.adapter:
        parts.insert(2, f"adapter {view.adapter}")
    if view.run_id:
        parts.insert(0, f"run {view.run_id}")
    if weights.status.started_at:
        parts.append(f"began {moment(weights.status.started_at)}")
    return f"{', '.join(parts)}. Seen {moment(now)}."


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
    return _list(facts)


def _list(facts: Iterable[tuple[str, str]]) -> str:
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f"<dl>{''.join(items)}</dl>"


def _phases(view: RolloutView) -> str:
    rows = phase_rows(view.phases)
    if not rows:
        return "<p>The operator has measured no phase of this rollout.</p>"
    note = (
        "Phases are drawn end to end. With Rolling and Canary, workers pass through them at "
        "different times."
    )
    return f"{chart(rows, 'Durations of the phases')}<p>{note}</p>"


def _workers(calls: Sequence[Span]) -> str:
    rows = worker_rows(calls)
    if not rows:
        return f"<p>{NO_CALLS}</p>"
    number = len({one.pod for one in calls})
    note = f"The {len(rows)} of {number} workers that ended last. " if number > len(rows) else ""
    return f"{chart(rows, 'Calls to each worker')}<p>{note}{WORKERS_NOTE}</p>"


def _past(entries: Sequence[HistoryEntry]) -> str:
    if not entries:
        return "<p>No rollout has ended yet.</p>"
    longest = max(entry.total_seconds for entry in entries) or 1.0
    bars = [
        Row(
            entry.version,
            (Bar(0.0, entry.total_seconds / longest, entry.result.lower()),),
            seconds(entry.total_seconds),
        )
        for entry in reversed(entries)
    ]
    rows = [
        [
            entry.version,
            entry.result,
            moment(entry.started_at),
            seconds(entry.total_seconds),
            seconds(entry.max_worker_pause_seconds),
            entry.requested_by or "-",
            entry.reason or "-",
            entry.message,
        ]
        for entry in entries
    ]
    columns = [
        "Version",
        "Result",
        "Began",
        "Took",
        "Longest pause",
        "Requested by",
        "Reason",
        "Message",
    ]
    return chart(bars, "Durations of the past rollouts") + _table(columns, rows)


def _lagging(found: Sequence[Laggard]) -> str:
    if not found:
        return "<p>No worker lags.</p>"
    rows = [[one.pod, one.state, one.version or "-", one.reason, one.message] for one in found]
    return _table(["Worker", "State", "Version", "Reason", "Message"], rows)


def _conditions(found: Sequence[tuple[str, Condition]]) -> str:
    if not found:
        return "<p>The operator has reported no condition.</p>"
    rows = [
        [of, c.type, c.status, c.reason, c.message, moment(c.last_transition_time)]
        for of, c in found
    ]
    return _table(["Object", "Type", "Status", "Reason", "Message", "Since"], rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def moment(then: datetime) -> str:
    """A time in words."""
    return then.strftime("%Y-%m-%d %H:%M:%S UTC")
