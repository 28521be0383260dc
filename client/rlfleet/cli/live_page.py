"""The page of `rlfleet dashboard` for one look at a fleet: pure. Its parts are those of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rlfleet.charts import WIDTH, Line, plot
from rlfleet.cli.cells import CELLS, cells, scale_of
from rlfleet.cli.explanation import Explanation
from rlfleet.cli.live import Detail, WorkerRow
from rlfleet.cli.loopback import SCRIPT
from rlfleet.cli.page import (
    alarm,
    document,
    explained,
    facts,
    past,
    subtitle,
    table,
    timeline,
    wide,
)
from rlfleet.cli.spans import Span
from rlfleet.cli.tables import COLUMNS, ago, worker_cells
from rlfleet.cli.view import FleetView, fleet_view, named, rollout_view, troubles
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.words import seconds

_STYLE = f"""<style>
body {{ max-width: 75rem; }}
section.parts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 0 2.5rem; }}
section.parts > * {{ min-width: 0; }}
.workers td {{ font-variant-numeric: tabular-nums; white-space: nowrap; }}
#state {{ position: sticky; top: 0; background: var(--halted); color: var(--paper); padding: .4rem .8rem; }}
.cells {{ font: 1.4rem/1 monospace; letter-spacing: .12em; overflow-wrap: anywhere; margin-bottom: .6rem; }}
.legend > span {{ display: inline-block; margin-right: 1rem; }}
svg {{ max-width: {WIDTH}px; }}
</style>"""
_COLOURS = {
    "serving": "applied",
    "staging": "staging",
    "paused": "pausing",
    "loading": "loading",
    "joining": "staging",
    "broken": "halted",
    "quarantined": "superseded",
}
"""State of a worker → word of its colour."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The whole fleet at one moment, by the metrics of its workers. None where none of them says.

    Fields:
        at: on a monotonic clock, in seconds.
    """

    at: float
    tokens_per_second: float | None
    running: int | None
    held: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The data of one page.

    Fields:
        unattended: that no operator drives the fleet; None if one does.
        calls: to each worker in the present rollout.
        samples: of the last minutes, the oldest first.
    """

    fleet: InferenceFleet
    weights: WeightVersion | None
    detail: Detail
    unattended: Explanation | None = None
    calls: Sequence[Span] = ()
    samples: Sequence[Sample] = ()


def sample_of(at: float, workers: Sequence[WorkerRow]) -> Sample:
    """The sums over the workers that say something."""
    figures = [one.figures for one in workers if one.figures is not None]
    speeds = [one.tokens_per_second for one in workers if one.tokens_per_second is not None]
    running = [one.running for one in figures if one.running is not None]
    held = [one.held for one in figures if one.held is not None]
    return Sample(
        at=at,
        tokens_per_second=sum(speeds) if speeds else None,
        running=sum(running) if running else None,
        held=sum(held) if held else None,
    )


def whole_page(title: str, content: str, nonce: str) -> str:
    """The page with a content, which events replace."""
    return document(
        title,
        _STYLE,
        '<p id="state" hidden>The program does not answer. What follows is old.</p>',
        f"<main>{content}</main>",
        f'<script nonce="{nonce}">{SCRIPT}</script>',
    )


def content(look: Look) -> str:
    """The part of the page that changes from look to look."""
    fleet, weights, detail = look.fleet, look.weights, look.detail
    view = fleet_view(fleet, [weights] if weights else [], detail.now)
    found = explained(look.unattended) if look.unattended else alarm(weights, fleet, detail.now)
    # Others than Stalled are lines, as on the screen of `rlfleet watch`.
    others = [c for _, c in troubles([view]) if c.type != "Stalled"]
    parts = [
        f"<h1>{escape(f'{view.namespace}/{view.name}')}</h1>",
        found,
        *_state(view, look),
        *(f"<p>{escape(f'{named(c)}, {c.reason}: {c.message}')}</p>" for c in others),
        "<h2>Workers</h2>",
        _workers(view, detail),
        '<section class="parts">',
    ]
    if weights is not None:
        rollout = rollout_view(weights, detail.now)
        parts.append(f"<div>{timeline(weights, rollout, look.calls)}</div>")
    parts += [f"<div>{_throughput(look.samples)}</div>", "</section>"]
    if weights is not None:
        parts.append(past(weights.status.history))
    if detail.events:
        rows = [[ago(e.at, detail.now), e.reason, e.message] for e in detail.events]
        parts += ["<h2>Events</h2>", table(["Seen", "Reason", "Message"], rows)]
    return "\n".join(part for part in parts if part)


def unread(message: str) -> str:
    """In place of a look that failed."""
    return f'<section class="alarm"><p>{escape(message)}</p></section>'


def _state(view: FleetView, look: Look) -> Iterator[str]:
    """Versions, phase and clocks, as on the screen of `rlfleet watch`."""
    serving = f"{view.workers.serving}/{view.replicas}"
    if not view.rollouts or look.weights is None:
        versions = ", ".join(f"{one.version} ({one.workers})" for one in view.versions)
        yield facts([("Serving", serving), ("Versions", versions or "none")])
        return
    one = view.rollouts[0]
    yield f"<p>{escape(subtitle(one, look.weights, look.detail.now))}</p>"
    clock = f" for {seconds(one.phase_seconds)}" if one.phase_seconds is not None else ""
    found = [
        ("Desired", one.desired),
        ("Applied", one.applied or "none"),
        ("Serving", serving),
        (f"At {one.desired}", (one.workers or "0") if one.observed else "not seen yet"),
        ("Phase", f"{one.phase}{clock}" if one.observed else "not seen yet"),
    ]
    if one.pause_seconds is None:
        found.append(("Longest pause", seconds(one.longest_pause_seconds)))
    else:
        found.append(("Paused for", seconds(one.pause_seconds)))
    if one.lag:
        found.append(
            ("Versions behind" if one.lag > 0 else "Versions to go back", str(abs(one.lag)))
        )
    yield facts(found)


def _workers(view: FleetView, detail: Detail) -> str:
    """A row for each; for a large fleet, or without the right to list pods, a cell for each."""
    if detail.workers:
        headings = [column.capitalize() for column in COLUMNS]
        rows = table(headings, [worker_cells(one) for one in detail.workers])
        return f'<div class="workers">{rows}</div>'
    scale = scale_of(view.workers)
    drawn = "".join(
        _coloured(CELLS[state] * number, state)
        for state, number in cells(view.workers, scale).items()
    )
    counts = view.workers.model_dump()
    legend = "".join(
        f"<span>{_coloured(cell, state)} {counts[state]} {state}</span>"
        for state, cell in CELLS.items()
        if counts[state]
    )
    note = f"<p>Each square or cross is up to {scale} workers.</p>" if scale > 1 else ""
    if not drawn:
        return "<p>None.</p>"
    return (
        f'<div class="cells" aria-hidden="true">{drawn}</div><p class="legend">{legend}</p>{note}'
    )


def _coloured(text: str, state: str) -> str:
    return f'<span style="color: var(--{_COLOURS[state]})">{text}</span>'


def _throughput(samples: Sequence[Sample]) -> str:
    """Tokens and requests over the last minutes; nothing before two looks."""
    known = [one for one in samples if one.tokens_per_second is not None or one.held is not None]
    if len(known) < 2:
        return ""
    last = known[-1].at
    length = last - known[0].at

    def line(name: str, colour: str) -> Line:
        points = [(one.at - last, getattr(one, name)) for one in known]
        return Line(colour, tuple((at, float(v)) for at, v in points if v is not None))

    tokens, requests = "Tokens a second", "Requests running (blue) and held (orange)"
    speed = [line("tokens_per_second", "resuming")]
    counts = [line("running", "staging"), line("held", "pausing")]
    return "".join(
        f"<h2>{title}</h2>{wide(plot(lines, title, length))}"
        for title, lines in ((tokens, speed), (requests, counts))
    )
