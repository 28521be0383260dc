"""One rollout as a self-contained HTML page: pure, from the statuses alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from rlfleet.charts import COLOURS, Bar, Row, chart
from rlfleet.cli.explanation import Explanation, explain, explain_fleet
from rlfleet.cli.spans import Span
from rlfleet.cli.view import RolloutView, fleet_view, rollout_view
from rlfleet.cli.waterfall import waterfall
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.words import plural, seconds
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import Laggard
from rlfleet_resources.weights_status import HistoryEntry

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
.alarm {{ border-left: .3rem solid var(--halted); padding: .1rem 0 .1rem 1rem; margin: 1.2rem 0; }}
.alarm p:first-child {{ color: var(--halted); font-weight: 600; font-size: 1.1rem; }}
.wide {{ overflow-x: auto; }} .wide svg {{ min-width: 32rem; }}
@media (max-width: 40rem) {{
  .texts table, .texts tbody, .texts tr, .texts td {{ display: block; }}
  .texts tr {{ border-bottom: 1px solid var(--line); padding: .4rem 0; }}
  .texts tr:first-child, .texts td:empty {{ display: none; }}
  .texts td {{ border: 0; padding: 0; overflow-wrap: anywhere; }}
  .texts td::before {{ content: attr(data-column) ": "; color: var(--dim); }}
}}
"""


def page(
    weights: WeightVersion,
    fleet: InferenceFleet | None,
    calls: Sequence[Span],
    now: datetime,
    *,
    collected: str = "",
) -> str:
    """The rollout of the desired version, with those before it.

    `fleet`: None if it is missing. `collected`: what a collector has said last about old versions.
    """
    view, status = rollout_view(weights, now), weights.status
    title = f"{view.name}: version {view.desired}"
    conditions = [(f"WeightVersion {view.name}", one) for one in status.conditions]
    lagging = {one.pod: one for one in (fleet.status.laggards if fleet else ())}
    lagging |= {one.pod: one for one in status.laggards}
    return document(
        title,
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(subtitle(view, weights, now))}</p>",
        alarm(weights, fleet, now),
        _facts(view, weights),
        _why_full(weights),
        timeline(weights, view, calls),
        past(weights.status.history),
        f"<h2>Old versions</h2><p>{escape(collected)}</p>" if collected else "",
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
    served = table(["Version", "Run", "Digest", "Workers"], rows) if rows else "<p>None.</p>"
    return document(
        title,
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(f'namespace {view.namespace}, {driver}. Seen {moment(now)}.')}</p>",
        alarm(None, fleet, now),
        facts([("Workers that serve", f"{view.workers.serving}/{view.replicas}")]),
        "<h2>Served versions</h2>",
        served,
        *_last_parts(fleet, view.lagging, []),
    )


def document(title: str, *parts: str) -> str:
    """A whole page of its parts."""
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
    found = [
        ("Applied version", view.applied or "none"),
        ("Workers with the version", view.workers or "0"),
        ("Total", seconds(timings.total_seconds) if timings.total_seconds else "-"),
        ("Longest pause of a worker", seconds(timings.max_worker_pause_seconds)),
    ]
    if view.failed:
        found.append(("Workers that failed", str(view.failed)))
    reads = weights.status.store_reads
    if reads is not None and reads.size_bytes:
        share = reads.published_bytes / reads.size_bytes
        size = f"{reads.published_bytes / 1e9:.3g} GB, {share:.1%} of the weights"
        found.append(("Published", size))
    if reads is not None:
        found.append(("Read from the store", _read(reads.bytes, reads.workers)))
        if reads.peer_workers:
            found.append(("Read from peers", _read(reads.peer_bytes, reads.peer_workers)))
    if effect is not None and effect.max_changed_share is not None:
        found.append(("Changed elements", f"{effect.max_changed_share:.1%}"))
    if effect is not None and (effect.in_place_workers or effect.why_full):
        found.append(("Loaded in place", f"by {plural(effect.in_place_workers, 'worker')}"))
        found.append(("Loaded in full", f"by {plural(effect.full_workers, 'worker')}"))
    return facts(found)


def _why_full(weights: WeightVersion) -> str:
    """Why a worker did not load in place; empty if none gave a reason."""
    effect = weights.status.effect
    if effect is None or not effect.why_full:
        return ""
    return f"<p>A load was a full one: {escape(effect.why_full)}</p>"


def _read(count: int, workers: int) -> str:
    return f"{count / 1e9:.3g} GB by {plural(workers, 'worker')}"


def facts(found: Iterable[tuple[str, str]]) -> str:
    """Words with their values, in large letters."""
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in found)
    return f"<dl>{''.join(items)}</dl>"


def alarm(weights: WeightVersion | None, fleet: InferenceFleet | None, now: datetime) -> str:
    """The words of `explain` for a stalled rollout or fleet; empty for others."""
    conditions = [c for one in (weights, fleet) if one is not None for c in one.status.conditions]
    if not any((c.type, c.status) == ("Stalled", "True") for c in conditions):
        return ""
    if weights is not None:
        return explained(explain(weights, fleet, now))
    return explained(explain_fleet(fleet, now)) if fleet is not None else ""


def explained(found: Explanation) -> str:
    """The sentence of an explanation in red, its cause, and the remedies."""
    lines = "".join(f"<p>{escape(one)}</p>" for one in (found.summary, *found.details[:1]))
    remedies = "".join(f"<li>{escape(one)}</li>" for one in found.remedies)
    return f'<section class="alarm">{lines}{f"<ul>{remedies}</ul>" if remedies else ""}</section>'


def timeline(weights: WeightVersion, view: RolloutView, calls: Sequence[Span]) -> str:
    """The phases and the calls to each worker, on one axis."""
    found = waterfall(weights.status.started_at, view.phases, calls)
    heading = "<h2>Phases and workers</h2>"
    if not found.rows:
        return f"{heading}<p>The operator has measured no phase of this rollout.</p>"
    note = (
        "Phases are drawn end to end. With Rolling and Canary, workers pass through them at "
        "different times."
    )
    drawn = wide(
        chart(found.rows, "Phases of the rollout, and calls to each worker", found.seconds)
    )
    return f"{heading}{drawn}<p>{note}</p><p>{found.note}</p>"


def past(entries: Sequence[HistoryEntry]) -> str:
    """The rollouts that have ended, the newest first."""
    heading = "<h2>Past rollouts</h2>"
    if not entries:
        return f"{heading}<p>No rollout has ended yet.</p>"
    longest = max(entry.total_seconds for entry in entries) or 1.0
    bars = [
        Row(
            entry.version,
            (Bar(0.0, entry.total_seconds / longest, entry.result.lower()),),
            seconds(entry.total_seconds),
        )
        for entry in entries
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
    drawn = wide(chart(bars, "Durations of the past rollouts", longest))
    return heading + drawn + table(columns, rows)


def _lagging(found: Sequence[Laggard]) -> str:
    if not found:
        return "<p>No worker lags.</p>"
    rows = [[one.pod, one.state, one.version or "-", one.reason, one.message] for one in found]
    return table(["Worker", "State", "Version", "Reason", "Message"], rows)


def _conditions(found: Sequence[tuple[str, Condition]]) -> str:
    if not found:
        return "<p>The operator has reported no condition.</p>"
    rows, said = list[list[str]](), dict[str, str]()
    for of, c in found:
        first = f"as {c.type} of {of}"
        known = said.setdefault(c.message, first)
        message = known if known != first and len(known) < len(c.message) else c.message
        rows.append([of, c.type, c.status, c.reason, message, moment(c.last_transition_time)])
    return table(["Object", "Type", "Status", "Reason", "Message", "Since"], rows)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table. One with messages is a list on a phone, each value behind the name of its column."""
    names = [escape(column) for column in columns]
    head = "".join(f"<th>{name}</th>" for name in names)
    texts = " texts" if "Message" in names else ""

    def cell(name: str, value: str) -> str:
        column = f' data-column="{name}"' if texts else ""
        return f"<td{column}>{escape(value)}</td>"

    body = "".join(f"<tr>{''.join(map(cell, names, row))}</tr>\n" for row in rows)
    return wide(f"<table><tr>{head}</tr>\n{body}</table>", texts)


def wide(part: str, more: str = "") -> str:
    """A part that scrolls where it is wider than the window. `more`: further classes."""
    return f'<div class="wide{more}">{part}</div>'


def moment(then: datetime) -> str:
    """A time in words."""
    return then.strftime("%Y-%m-%d %H:%M:%S UTC")
