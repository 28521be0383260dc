"""Random histories: a fleet, random actions and faults, and a good end.

history(7)              one history; every failure prints its seed
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.model.faults import Faults
from tests.model.random_actions import RandomActions, Settings
from tests.model.simulator import Simulation

SHORT = {"timeouts": {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}}
STRATEGIES: list[Settings] = [
    {},
    SHORT | {"maxFailures": 1},
    {"pause": {"mode": "Wait", "drainTimeoutSeconds": 2}},
    SHORT | {"pause": {"mode": "Abort"}},
    {"strategy": "InFlight"},
    SHORT | {"strategy": "InFlight", "maxFailures": 1, "pause": {"mode": "Wait"}},
    {"strategy": "Rolling", "maxUnavailable": 1},
    SHORT | {"strategy": "Rolling", "onFailure": "Rollback"},
    {"strategy": "Canary"},
    SHORT | {"strategy": "Canary", "maxFailures": 1},
    {"strategy": "Canary", "canary": {"workers": 2, "then": "Rolling"}},
]
UPDATES: list[Settings] = [
    {},
    {"maxUnavailable": 0, "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"maxUnavailable": "50%", "maxSurge": "50%"},
    {},
    {"type": "OnDelete", "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"paused": True, "maxUnavailable": 0, "maxSurge": "50%"},
]
ROUGH = Faults(
    answer_lost=0.1,
    call_lost=0.08,
    answer_late=0.1,
    operator_dies=0.03,
    operator_freezes=0.02,
    stale_view=0.2,
    status_unwritten=0.2,
    api_refuses=0.1,
)
LONGER_THAN_A_LEASE = 35.0
"""Seconds that loads take in some fleets."""
PACES = (0.0, 0.0, 2.5, LONGER_THAN_A_LEASE)
"""Seconds that stages and loads take."""
BOUNDS: tuple[int | str | None, ...] = (None, 1, 2, "50%")
"""Of `maxStaging`."""
PINS = (None, 4, 6)
"""How many pins the status of the fleet holds; None: as many as a real one."""
ENDURES = 0.25
"""How many histories must end with a reported reason while the faults last."""


def new_fleet(seed: int, *, rollout: Settings | None = None) -> Simulation:
    """A fleet whose settings hang on the seed, settled on version 1."""
    settings = STRATEGIES[seed % len(STRATEGIES)] if rollout is None else rollout
    rest = seed // len(STRATEGIES)
    bound = BOUNDS[rest // len(PACES) % len(BOUNDS)]
    if bound is not None:
        settings = {"maxStaging": bound} | settings
    fleet = Simulation(
        seed=seed,
        replicas=1 + rest % 4,
        rollout=settings,
        slow_seconds=PACES[rest % len(PACES)],
        update=UPDATES[rest % len(UPDATES)],
        pins=Random(f"pins of {seed}").choice(PINS),  # noqa: S311 - repeatable on purpose
    )
    fleet.settle()
    return fleet


def history(
    seed: int,
    *,
    rollout: Settings | None = None,
    reconciles: int = 120,
    watch: Callable[[Simulation], None] | None = None,
) -> Simulation:
    """One random history, to its end: repaired and converged, or stalled with a reason; quiet.

    `watch`: is given the simulation before anything happens to it.
    """
    fleet = new_fleet(seed, rollout=rollout)
    if watch is not None:
        watch(fleet)
    actions, chance = RandomActions(fleet), fleet.random
    # Some histories have but one kind of fault: what many hide from each other shows there.
    rough = chance.random() < 0.7
    fleet.faults = Faults(**vars(ROUGH)) if rough else Faults()
    fleet.between = lambda: actions.act_at_random(0.05)
    for _ in range(reconciles):
        fleet.reconcile()
        fleet.tick(chance.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
        actions.act_at_random()
    actions.create_weights()
    actions.adapters.resume()
    if chance.random() < ENDURES:
        fleet.endure()
    if fleet.desired.fleet_spec.update.is_held:
        # No worker may stay for an update that is not going to come.
        actions.change_template()
        fleet.scale(max(1, fleet.replicas - 1))
    ending = chance.random()
    if ending < 0.5:
        fleet.repair()
        applied = fleet.leader.fleet.applied
        if applied is not None and applied.version in fleet.odd_versions:
            # It was judged without a comparison, and all others are far from it.
            fleet.note("user", "raises the limits of the canary")
            fleet.odd_versions.clear()
        fleet.scale(max(1, fleet.replicas))
        version = str(actions.highest + 2)
        fleet.control(suspend=False, rollbackTo=version, version=version, digest=None)
        actions.adapters.publish_unseen()
        fleet.settle()
    elif ending < 0.7:
        fleet.scale(max(1, fleet.replicas))
        fleet.control(suspend=False)
        fleet.settle_or_say_reused()
    else:
        fleet.settle_or_say()
    at_rest = fleet.converged()
    writes = fleet.run_quietly()
    # The operator retries a stalled part and writes two statuses, at most once a second.
    if writes > (0 if at_rest else 20):
        fleet.fail(7, f"{writes} writes of a fleet at rest")
    return fleet
