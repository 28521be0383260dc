"""Named stories of settings that change in the middle of a rollout; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story

from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

_IN_FLIGHT = {"strategy": "InFlight"}
_SYNCHRONIZED = {"strategy": "Synchronized"}


def a_change_to_canary_after_a_load() -> Chronicle:
    """A worker has loaded the version behind a barrier when the strategy becomes Canary: it does not wait"""
    its = Chronicle(replicas=3)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    for ordinal in (1, 2):
        its.fleet.reject(its.fleet.pod(ordinal), "load")
    its.until(lambda: its.fleet.pod(0).worker.label == "2")
    its.go(1, seconds=1.0)
    for ordinal in (1, 2):
        its.fleet.obey(its.fleet.pod(ordinal))
    rollout = {"strategy": "Canary", "canary": {"then": "Rolling"}}
    its.fleet.change_fleet("changes to Canary", rollout=rollout)
    its.go(2)
    if (
        its.fleet.weights.phase is RolloutPhase.JUDGING
        and its.fleet.pod(0).worker.phase is Phase.PAUSED
    ):
        its.fleet.fail(3, "a worker is paused while canaries are judged")
    return its.end()


def a_change_to_canary_before_a_late_load_ends() -> Chronicle:
    """A version is retried with Canary while a worker still loads it: it goes back, and canaries judge"""
    timeouts = {"pauseSeconds": 20, "loadSeconds": 20}
    its = Chronicle(
        replicas=3, rollout={"timeouts": timeouts, "pause": {"drainTimeoutSeconds": 10}}
    )
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    late = its.fleet.pod(2)
    late.worker.slow_seconds, late.suspect = 25.0, True
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.until(lambda: its.fleet.serving == ["1", "1"], seconds=1.0)
    its.fleet.odd_versions.add("2")
    its.fleet.control(rollout={"strategy": "Canary", "timeouts": timeouts})
    its.fleet.retry("now")
    its.until(lambda: late.worker.label == "2")
    late.worker.slow_seconds = 0.0
    its.go(4)
    if late.worker.phase is Phase.PAUSED:
        its.fleet.fail(3, "a worker is paused while canaries are judged")
    its.until(lambda: its.fleet.stalled, seconds=1.0)
    its.fleet.publish("3")
    return its.end()


def a_late_load_of_the_only_worker_under_canaries() -> Chronicle:
    """The only worker ends a load of an abandoned version: it goes back first, and then judges the next one"""
    timeouts = {"pauseSeconds": 20, "loadSeconds": 20}
    its = Chronicle(
        replicas=1, rollout={"timeouts": timeouts, "pause": {"drainTimeoutSeconds": 10}}
    )
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    late = its.fleet.pod(0)
    late.worker.slow_seconds, late.suspect = 27.0, True
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.fleet.odd_versions.add("3")
    its.fleet.control(rollout={"strategy": "Canary", "timeouts": timeouts})
    its.fleet.publish("3")
    its.until(lambda: late.worker.label == "2", seconds=1.0)
    late.worker.slow_seconds = 0.0
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.fleet.publish("4")
    return its.end()


def a_change_to_in_flight_in_a_load_that_hangs() -> Chronicle:
    """The strategy becomes InFlight while a load hangs: the barrier ends first, and the version is abandoned"""
    timeouts = {"pauseSeconds": 20, "loadSeconds": 20}
    rollout = {"timeouts": timeouts, "pause": {"drainTimeoutSeconds": 10}}
    its = Chronicle(replicas=3, rollout=rollout)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    hangs = its.fleet.pod(2)
    hangs.worker.slow_seconds, hangs.suspect = 1000.0, True
    its.until(lambda: hangs.worker.phase is Phase.LOADING)
    hangs.worker.slow_seconds = 0.0
    its.fleet.control(rollout=_IN_FLIGHT | rollout)
    its.go(25)
    if not its.fleet.stalled:
        its.fleet.fail(6, "a load lasts longer than its timeout, and it is not Stalled")
    its.go(30, seconds=8.0)
    its.fleet.publish("3")
    return its.end()


def a_refusal_after_a_version_was_abandoned() -> Chronicle:
    """An abandoned version leaves spec.weights.roots, and is in them again: it stays abandoned"""
    its = Chronicle(replicas=3)
    its.fleet.will_break("2", its.fleet.pod(0))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.until(lambda: its.fleet.serving == ["1", "1", "1"], seconds=1.0)
    for roots in ("/other", "/weights"):
        weights = {"roots": [roots], "management": "Operator"}
        its.fleet.change_fleet(f"changes the roots to {roots}", weights=weights)
        its.go(5)
    if its.fleet.weights.phase is not RolloutPhase.HALTED:
        its.fleet.fail(6, "an abandoned version is rolled out, and no retry was requested")
    its.fleet.publish("3")
    return its.end()


def a_change_to_canary_that_is_suspended() -> Chronicle:
    """A worker swaps when the strategy becomes Canary, and the version is suspended: the others do not follow"""
    its = Chronicle(replicas=3, rollout={"strategy": "Rolling", "maxUnavailable": 1})
    swaps = its.fleet.pod(0)
    its.fleet.publish("2")
    its.until(lambda: all(w.staged == "2" for w in its.fleet.workers.values()))
    swaps.worker.slow_seconds = 10.0
    its.until(lambda: swaps.worker.phase is Phase.LOADING)
    its.fleet.odd_versions.add("2")
    its.fleet.control(rollout={"strategy": "Canary"}, suspend=True)
    its.go(5)
    its.fleet.kill(swaps)  # no client gets a token of it
    swaps.worker.slow_seconds = 0.0
    its.go(10)
    its.fleet.publish("3")
    its.fleet.control(suspend=False)
    return its.end()


def a_rollout_that_is_suspended_on_its_way_back() -> Chronicle:
    """Versions overtake each other, and the fleet is suspended: all return, and no rollout begins"""
    its = Chronicle(replicas=3, rollout=_IN_FLIGHT)
    last = its.fleet.pod(2)
    last.worker.slow_seconds = 4.0
    its.fleet.publish("2")
    its.until(lambda: its.fleet.pod(0).worker.label == "2")
    its.until(lambda: last.worker.staged == "2")
    its.until(lambda: last.worker.work is not None)
    its.fleet.publish("3")
    its.until(lambda: (its.fleet.pod(0).worker.label, last.worker.label) == ("3", "2"))
    its.fleet.control(rollout=_SYNCHRONIZED, suspend=True)
    for _ in range(12):
        its.go(1, seconds=3.0)
        if last.worker.label == "3":
            its.fleet.fail(6, "a suspended version was rolled out")
    its.fleet.control(suspend=False)
    return its.end()


def a_change_to_a_barrier_after_a_long_drain() -> Chronicle:
    """Swaps drained for long and load when the strategy becomes Synchronized: the version is kept"""
    pause = {"mode": "Wait", "drainTimeoutSeconds": 60}
    rollout = {"pause": pause, "timeouts": {"loadSeconds": 30}}
    its = Chronicle(replicas=3, rollout=_IN_FLIGHT | rollout)
    first, *others = its.fleet.workers.values()
    first.requests.left_seconds, first.slow_seconds = 5.0, 5.0
    for worker in others:
        worker.requests.left_seconds, worker.slow_seconds = 50.0, 5.0
    its.fleet.publish("2")
    its.until(lambda: all(w.phase is Phase.LOADING for w in others), seconds=1.0)
    its.go(2)
    its.fleet.control(rollout=_SYNCHRONIZED | rollout)
    its.go(1)
    if its.fleet.weights.phase is RolloutPhase.HALTED:
        its.fleet.fail(6, "version 2 is abandoned while the workers load it in time")
    return its.end()


STORIES: list[Story] = [
    a_change_to_canary_after_a_load,
    a_change_to_canary_before_a_late_load_ends,
    a_refusal_after_a_version_was_abandoned,
    a_change_to_canary_that_is_suspended,
    a_rollout_that_is_suspended_on_its_way_back,
    a_change_to_a_barrier_after_a_long_drain,
    a_late_load_of_the_only_worker_under_canaries,
    a_change_to_in_flight_in_a_load_that_hangs,
]
