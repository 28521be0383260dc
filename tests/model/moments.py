"""Moments of a fleet at which a request or a fault matters most, and rules: what happens when one comes.

Mistakes show where two or three things meet, say a change of strategy while one worker loads and another hangs.
Events at random times seldom meet so. A rule waits for its moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tests.model.fake_worker import FakeWorker
from tests.model.leader import WriteFleet
from tests.model.odd_one import OddOne
from tests.model.simulator import Simulation

from fleet_worker.protocol import Phase

_SERVES = frozenset({Phase.SERVING, Phase.PAUSED, Phase.PAUSING})
_STATES: Mapping[str, Callable[[FakeWorker], object]] = {
    "a worker reads": lambda w: w.staging,
    "a worker is silent": lambda w: w.hung,
    "an adapter is staged": lambda w: w.staged_adapters,
    "an adapter is served": lambda w: w.adapters,
    "a worker has refused": lambda w: (
        w.refused_stages or w.load_failure or w.refused_adapters.faults
    ),
}
FOLLOWED = 0.4
"""The share of rules after which another one holds."""
_OFTEN = (
    *(
        "a worker is paused",
        "all are paused",
        "a worker is loading",
        "some have loaded",
        "a worker reads",
    ),
    *("some have staged", "all have staged", "a worker is joining", "versions differ"),
    *("the version is Judging", "the version is Halted", "the version is Applied"),
)
MOMENTS = (
    *_OFTEN,
    *_OFTEN,
    *(f"a worker is {phase}" for phase in ("starting", "pausing", "broken", "serving")),
    *("some are paused", "all have loaded", "a worker is silent", "a worker has refused"),
    *(
        f"a call to {kind}"
        for kind in ("stage", "load", "apply", "resume", "admit", "fence", "probe")
    ),
    *(
        "it is Halted and one is held",
        "it is Judging and one is held",
        "a pod drains",
        "a pod is gated",
    ),
    *(
        "the version is Staging",
        "the version is Loading",
        "the version is Comparing",
        "a call to compare",
        "an adapter is staged",
        "an adapter is served",
    ),
)


def moments_of(fleet: Simulation, odd: OddOne) -> Iterator[str]:
    """Returns the moments of a fleet now."""
    yield from odd.moments()
    workers = [p.worker for p in fleet.pods.values() if p.deleted_at is None]
    for worker in workers:
        yield f"a worker is {worker.phase}"
        yield from (what for what, true in _STATES.items() if true(worker))
    held = [w.phase is Phase.PAUSED for w in workers]
    yield from _amount("are paused", held)
    yield from _amount("have staged", [w.staged == fleet.version for w in workers])
    yield from _amount("have loaded", [w.label == fleet.version for w in workers])
    if len({w.weights for w in workers if w.phase in _SERVES}) > 1:
        yield "versions differ"
    for flight in fleet.leader.flights.values():
        yield f"a call to {flight.action.kind}"
    leader = fleet.leader
    is_new = leader.fleet.applied != fleet.fleet_stored.applied
    if is_new and any(isinstance(what, WriteFleet) for what in leader.todo):
        yield "the applied version is to be stored"
    phase = fleet.weights.phase
    yield f"the version is {phase}"
    if any(held):
        yield f"it is {phase} and one is held"
    if any(p.drains_since is not None for p in fleet.pods.values()):
        yield "a pod drains"
    if any(p.gated for p in fleet.pods.values()):
        yield "a pod is gated"


def _amount(what: str, true: list[bool]) -> Iterator[str]:
    if any(true):
        yield f"{'all' if all(true) else 'some'} {what}"


@dataclass(frozen=True)
class Rule:
    """Actions at a moment: one, or two at once. `then`: holds once, after each time."""

    moment: str
    actions: tuple[Callable[[], None], ...]
    then: Rule | None = None


def draw_rules(chance: Random, themes: list[list[Callable[[], None]]], most: int) -> list[Rule]:
    """Some rules at random. Themes are actions that belong together."""
    return [_rule(chance, themes) for _ in range(chance.randint(0, most))]


def _rule(chance: Random, themes: list[list[Callable[[], None]]]) -> Rule:
    follows = chance.random() < FOLLOWED
    return Rule(
        chance.choice(MOMENTS),
        tuple(chance.choice(chance.choice(themes)) for _ in range(chance.choice([1, 1, 1, 2]))),
        _rule(chance, themes) if follows else None,
    )
