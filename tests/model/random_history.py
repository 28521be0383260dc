"""Random histories: a fleet, random actions and faults, and a good end.

history(7)              one history; every failure prints its seed
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

from tests.model.plays import (
    LOOKS_AFTER_A_PLAY,
    MOST_LOOKS_AFTER_A_PLAY,
    SECONDS_BETWEEN_LATE_LOOKS,
)
from tests.model.random_actions import RandomActions, Settings
from tests.model.simulator import Simulation
from tests.model.swarm import LOOKS_OF_A_WEATHER, WEATHER, Swarm, swarm_of

from rlfleet_resources.weights_status import RolloutPhase

_COME = frozenset({RolloutPhase.STAGING, RolloutPhase.LOADING})
CHANCE_OF_A_CHANGE, CHANCE_OF_A_REPAIR = 0.5, 0.3
CHANCE_BETWEEN_ACTIONS = 0.05
"""Of what may happen, while the operator does what it has decided."""


def collect_rarely() -> None:
    """Decisions leave many records behind, and no circles among them (measured: 7 % of the time)."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def new_fleet(seed: int, swarm: Swarm, *, rollout: Settings | None = None) -> Simulation:
    """A fleet with the settings of its history, settled on version 1."""
    fleet = Simulation(
        seed=seed,
        replicas=swarm.replicas,
        rollout=swarm.rollout if rollout is None else rollout,
        slow_seconds=swarm.slow_seconds,
        update=swarm.update,
        pins=swarm.pins,
        adapters={"max": swarm.slots},
    )
    fleet.settle()
    return fleet


def history(
    seed: int,
    *,
    rollout: Settings | None = None,
    watch: Callable[[Simulation], None] | None = None,
) -> Simulation:
    """One random history, to its end: repaired and converged, or stalled with a reason; quiet.

    `watch`: is given the simulation before anything happens to it.
    """
    swarm = swarm_of(seed)
    fleet = new_fleet(seed, swarm, rollout=rollout)
    if watch is not None:
        watch(fleet)
    actions = RandomActions(fleet, swarm)
    _storm(fleet, actions, swarm)
    fleet.write_all()
    actions.create_weights()
    actions.adapters.resume()
    if swarm.endures:
        fleet.endure()
    if fleet.desired.fleet_spec.update.is_held:
        # No worker may stay for an update that is not going to come.
        actions.change_template()
        fleet.scale(max(1, fleet.replicas - 1))
    _come_to_an_end(fleet, actions)
    at_rest, before = fleet.converged(), len(fleet.log)
    recycled = fleet.leader.fleet.recycled
    writes = fleet.run_quietly()
    if set(fleet.leader.fleet.recycled) < set(recycled):
        writes -= 1  # what was recreated long ago is forgotten once
    # The operator retries a stalled part and writes the statuses of all objects, at most once a second.
    if writes > (0 if at_rest else 10 * (1 + len(fleet.leader.weights))):
        fleet.fail(7, f"{writes} writes of a fleet at rest")
    _says_nothing_again(fleet, before)
    return fleet


def _says_nothing_again(fleet: Simulation, before: int) -> None:
    """The Events of the last minute are true. `before`: entries of the log before the rest."""
    told = [entry for entry in fleet.log if entry.who == "event"]
    for entry in (entry for entry in fleet.log[before:] if entry.who == "event"):
        times = [e.at for e in told if e.what == entry.what and entry.at - 60 < e.at < entry.at]
        if times:
            fleet.fail(
                7, f"at rest an Event repeats after {entry.at - max(times):.0f} s: {entry.what}"
            )


def _storm(fleet: Simulation, actions: RandomActions, swarm: Swarm) -> None:
    """Calm and storm take turns, and each storm has faults of its own."""
    chance, looks_left, weather = fleet.random, 0, 1.0

    def strike() -> None:
        actions.act_at_random(CHANCE_BETWEEN_ACTIONS * weather)
        if weather:
            actions.follow_rules()

    fleet.faults, fleet.between = replace(swarm.faults), strike
    after = 0
    for _ in range(swarm.looks):
        after += bool(swarm.play) and not actions.play
        is_over = after > LOOKS_AFTER_A_PLAY
        if is_over and (after > MOST_LOOKS_AFTER_A_PLAY or not _is_under_way(fleet)):
            break
        if not looks_left and not swarm.play:
            looks_left, weather = chance.choice(LOOKS_OF_A_WEATHER), chance.choice(WEATHER)
            weather = 1.0 if swarm.is_focused else weather
            if chance.random() < CHANCE_OF_A_CHANGE:
                actions.draw()
            if (swarm.is_focused or not weather) and chance.random() < CHANCE_OF_A_REPAIR:
                _repair(fleet)
                fleet.faults, fleet.between = replace(swarm.faults), strike
        looks_left = max(0, looks_left - 1)
        fleet.reconcile()
        fleet.tick(SECONDS_BETWEEN_LATE_LOOKS if is_over else chance.choice(swarm.pace))
        actions.act_at_random(weather)
        if weather:
            actions.follow_rules()
    actions.brief.end_all()


def _is_under_way(fleet: Simulation) -> bool:
    """Whether workers hold requests, or adapters are on their way."""
    if any(w.lease is not None or w.work is not None for w in fleet.workers.values()):
        return True
    adapters = (s for uid, s in fleet.leader.weights.items() if uid != fleet.desired.base_uid)
    return any(s.phase in _COME for s in adapters)


def _repair(fleet: Simulation) -> None:
    fleet.mend()
    fleet.repair_workers()
    fleet.write_all()
    _speed_up(fleet)


def _speed_up(fleet: Simulation) -> None:
    for worker in fleet.workers.values():
        worker.end_slow_work(fleet.slow_seconds)


def _come_to_an_end(fleet: Simulation, actions: RandomActions) -> None:
    """All is repaired, or only the workers, or nothing is."""
    _speed_up(fleet)
    ending = fleet.random.random()
    if ending < 0.35:
        fleet.repair()
        applied = fleet.leader.fleet.applied
        if applied is not None and applied.version in fleet.odd_versions:
            # It was judged without a comparison, and all others are far from it.
            fleet.note("user", "raises the limits of the canary")
            fleet.odd_versions.clear()
        fleet.scale(max(1, fleet.replicas))
        version = actions.name(actions.highest + 2)
        fleet.control(suspend=False, rollbackTo=version, version=version, digest=None)
        actions.adapters.publish_unseen()
        fleet.settle()
    elif ending < 0.75:
        fleet.scale(max(1, fleet.replicas))
        fleet.control(suspend=False)
        fleet.settle_or_say_reused()
    else:
        fleet.settle_or_say()
