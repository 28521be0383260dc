"""The ingredients of one random history: swarm testing.

Histories with every kind of fault are all alike, and one fault hides what another one would show. So
each history has about half of the kinds of faults, each as often as luck wants it, settings of its own,
and a pace of its own. It alternates between calm and storm.

Source: Groce et al., "Swarm Testing", ISSTA 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.model.faults import Faults
from tests.model.plays import SUBJECTS, Subject, settings_of

Settings = dict[str, Any]

SHORT = {"timeouts": {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}}
SHORTEST = {"timeouts": {"stageSeconds": 40, "pauseSeconds": 5, "loadSeconds": 10}}
UPDATES: list[Settings] = [
    {},
    {"maxUnavailable": 0, "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"maxUnavailable": "50%", "maxSurge": "50%"},
    {},
    {"type": "OnDelete", "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"paused": True, "maxUnavailable": 0, "maxSurge": "50%"},
]
SLOTS = 2
"""For how many adapters most simulated fleets have slots at first, and all in the end."""
LONGER_THAN_A_LEASE = 35.0
"""Seconds that loads take in some fleets."""
FACTORS = (0.0, 0.0, 0.0, 0.5, 1.0, 3.0)
"""How often a kind of event happens, in comparison with its usual chance."""
PACES = (
    (0.0, 0.1, 1.0, 5.0, 20.0),
    (0.0, 0.1, 0.1, 1.0),
    (0.1, 1.0, 1.0, 5.0),
    (1.0, 5.0, 20.0, 20.0),
)
"""Seconds between two looks of the operator."""
FOCUSED_PACES = ((0.1, 1.0), (0.1, 1.0, 5.0), (1.0, 5.0), (5.0, 10.0))
STRATEGIES = (
    *("Synchronized", "Synchronized", "Synchronized", "Canary", "Canary", "Rolling", "InFlight"),
)
WEATHER = (0.0, 0.0, 0.3, 1.0, 1.0, 2.0)
"""How much happens, in comparison with the usual, for a number of looks."""
LOOKS_OF_A_WEATHER = (5, 10, 20)
HELD = 0.25
"""The share of plays about adapters in which updates are held."""
PLAYS = 0.75
"""The share of histories that are one play."""
FOCUSED = 0.6
"""The share of histories in which things happen by rules only."""


@dataclass(frozen=True)
class Swarm:
    """The choices for one history.

    Fields:
        replicas, rollout, update: settings of its fleet.
        slow_seconds: how long stages and loads take.
        pins: how many pins the status of the fleet holds; None: as many as a real one.
        looks: how often the operator looks until faults end.
        faults: of operators, of the network and of the API server.
        pace: seconds between two looks.
        eager: how much more happens while workers hold their requests, or load.
        suffix: of version labels, behind their number. Labels with one have no order.
        early: how many versions are published before their files are written.
        endures: faults last, and the fleet must say so in the end.
        rules: how many rules hold at most (`moments`).
        is_focused: nothing happens but by rules, apart from new versions.
        play: the subject of its play; nothing else happens in it. None in other histories.
        slots: for how many adapters its fleet has slots at first.
        odd: the share of faults that hit one and the same worker.
    """

    chance: Random
    replicas: int
    rollout: Settings
    update: Settings
    slow_seconds: float
    pins: int | None
    looks: int
    faults: Faults
    pace: tuple[float, ...]
    eager: float
    suffix: str
    early: float
    endures: bool
    has_all: bool
    rules: int
    is_focused: bool
    play: Subject | None
    odd: float
    slots: int = SLOTS

    def factor(self) -> float:
        """How often one kind of event happens in this history."""
        return 1.0 if self.has_all else self.chance.choice(FACTORS)


def swarm_of(seed: int) -> Swarm:
    """The choices of a history. They change no later random number of it."""
    chance = Random(f"swarm of {seed}")  # noqa: S311 - repeatable on purpose
    slow_seconds = chance.choice([0.0, 0.0, 0.0, 2.5, 2.5, LONGER_THAN_A_LEASE])
    found = Swarm(
        chance=chance,
        replicas=chance.choice([1, 2, 2, 3, 3, 4]),
        rollout=random_rollout(chance, slow_seconds),
        update=chance.choice(UPDATES),
        slow_seconds=slow_seconds,
        pins=chance.choice([None, 4, 6]),
        looks=chance.choice([60, 120, 240, 240]),
        faults=_faults(chance),
        pace=chance.choice(PACES),
        eager=chance.choice([1.0, 1.0, 4.0]),
        suffix=chance.choice(["", "", "", "-name"]),
        early=chance.choice([0.0, 0.0, 0.3]),
        endures=chance.random() < 0.25,
        has_all=chance.random() < 0.15,
        rules=chance.choice([0, 3, 6]),
        is_focused=False,
        play=None,
        odd=chance.choice([0.0, 0.8]),
    )
    if chance.random() < PLAYS:
        return _play(found, chance)
    return _focused(found, chance) if chance.random() < FOCUSED else found


def _focused(swarm: Swarm, chance: Random) -> Swarm:
    return replace(
        swarm,
        is_focused=True,
        rules=chance.choice([6, 12, 18]),
        faults=Faults() if chance.random() < 0.7 else swarm.faults,
        looks=chance.choice([60, 120]),
        slow_seconds=chance.choice([0.0, 0.5, 2.5, 6.5]),
        pace=chance.choice(FOCUSED_PACES),
        early=0.0,
    )


def _play(swarm: Swarm, chance: Random) -> Swarm:
    subject = chance.choice(SUBJECTS)
    is_held = subject is Subject.ADAPTERS and chance.random() < HELD
    return replace(
        swarm,
        is_focused=True,
        play=subject,
        endures=chance.random() < (0.5 if subject is Subject.PODS else 0.25),
        rollout=settings_of(subject, chance, swarm.rollout),
        odd=0.8,
        slots=chance.choice([0, 0, 1, SLOTS, SLOTS]) if subject is Subject.ADAPTERS else SLOTS,
        update=UPDATES[-1] if is_held else swarm.update,
        rules=0,
        has_all=False,
        replicas=chance.choice([1, 2, 2, 3, 3, 4]),
        faults=Faults(),
        looks=240,
        slow_seconds=chance.choice([0.0, 0.5, 2.5, 6.5]),
        pace=chance.choice(FOCUSED_PACES),
        early=0.0,
    )


def random_rollout(chance: Random, slow_seconds: float) -> Settings:
    """Settings of a fleet's rollouts, or of one version. Their timeouts are long enough for loads."""
    found: Settings = {"strategy": chance.choice(STRATEGIES)}
    shortest = SHORTEST if slow_seconds < SHORTEST["timeouts"]["loadSeconds"] else SHORT
    found |= chance.choice([SHORT, SHORT, shortest, {}])
    if found["strategy"] == "Canary":
        found["canary"] = {
            "workers": chance.choice([1, 1, 2]),
            "then": chance.choice(["Synchronized", "Synchronized", "Rolling", "InFlight"]),
        }
    wait = {"mode": "Wait", "drainTimeoutSeconds": 2}
    pause = chance.choice([None, None, None, wait, {"mode": "Wait"}, {"mode": "Abort"}])
    for name, value in {
        "pause": pause,
        "maxStaging": chance.choice([None, None, None, 1, 2, "50%"]),
        "maxUnavailable": chance.choice([None, 1, 2]),
        "maxFailures": chance.choice([None, None, 1]),
        "onFailure": chance.choice([None, None, "Rollback"]),
    }.items():
        if value is not None:
            found[name] = value
    return found


def _faults(chance: Random) -> Faults:
    if chance.random() < 0.25:
        return Faults()

    def some(*usual: float) -> float:
        return chance.choice((0.0, *usual))

    return Faults(
        answer_lost=some(0.05, 0.1, 0.3),
        call_lost=some(0.04, 0.08),
        answer_late=some(0.1, 0.3),
        operator_dies=some(0.01, 0.03, 0.1),
        operator_freezes=some(0.02, 0.05),
        stale_view=some(0.2, 0.2),
        status_unwritten=some(0.2, 0.4),
        api_refuses=some(0.1, 0.1),
    )
