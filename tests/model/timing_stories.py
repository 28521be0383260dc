"""Named stories of workers that are late, or missing; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story
from tests.model.fake_pods import FakePod

from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

_SHORT = {"pauseSeconds": 20, "loadSeconds": 20}
_SHORT_DRAIN = {"drainTimeoutSeconds": 10}


def a_change_to_a_barrier_while_workers_are_missing() -> Chronicle:
    """Half of the pods do not start, the history has lost the applied version, and the strategy changes: the others serve on"""
    its = Chronicle(replicas=4, rollout={"strategy": "InFlight"})
    serving = [its.fleet.pod(ordinal) for ordinal in (0, 1)]
    for ordinal in (2, 3):
        its.fleet.crash_loop(its.fleet.pod(ordinal))
    its.go(3)
    its.fleet.delete_weights()  # and the history with it
    its.fleet.create_weights({"version": "2"})
    its.until(lambda: its.fleet.serving == ["2", "2"], seconds=1.0)
    its.fleet.publish("3")
    its.until(lambda: its.fleet.serving == ["3", "3"], seconds=1.0)
    for pod in serving:
        pod.worker.slow_seconds = 20.0
    its.fleet.publish("4")
    its.go(2)
    its.fleet.change_fleet("changes to Synchronized", rollout={"strategy": "Synchronized"})
    for _ in range(8):
        its.go(1, seconds=2.0)
        if its.fleet.serving != ["3", "3"]:
            its.fleet.fail(
                4, "two workers serve version 3, and one leaves the Service for version 1"
            )
    for pod in serving:
        pod.worker.slow_seconds = 0.0
    return its.end()


def a_version_that_kills_every_canary() -> Chronicle:
    """The only worker dies whenever it loads the version: the version is abandoned"""
    timeouts = {"stageSeconds": 10, "loadSeconds": 10}
    rollout = {"strategy": "Canary", "timeouts": timeouts, "pause": {"drainTimeoutSeconds": 1}}
    its = Chronicle(replicas=1, rollout=rollout)
    pod = its.fleet.pod(0)
    pod.worker.slow_seconds = 1.0
    its.fleet.publish("2")
    for _ in range(150):
        its.go(1, seconds=0.9)
        if pod.worker.phase is Phase.LOADING and its.fleet.weights.phase is not RolloutPhase.HALTED:
            its.fleet.kill(pod, back_after_seconds=20.0)
    if its.fleet.weights.phase is not RolloutPhase.HALTED:
        its.fleet.fail(6, "every canary dies of version 2, and it is not abandoned")
    its.fleet.publish("3")
    return its.end()


def workers_that_are_away_during_the_judgement() -> Chronicle:
    """All workers die while the canary stages, and are away for long: the version is judged when they are back"""
    timeouts = {"stageSeconds": 10, "loadSeconds": 10}
    rollout = {"strategy": "Canary", "timeouts": timeouts, "pause": {"drainTimeoutSeconds": 1}}
    its = Chronicle(replicas=2, slow_seconds=3.0, rollout=rollout)
    its.fleet.publish("2")
    its.go(2)
    for pod in list(its.fleet.pods.values()):
        its.fleet.kill(pod, back_after_seconds=120.0)
    its.go(30, seconds=5.0)
    if its.fleet.weights.phase is RolloutPhase.HALTED:
        its.fleet.fail(6, "version 2 is abandoned, and no worker has loaded it")
    return its.end()


def a_worker_that_joins_late_in_the_staging() -> Chronicle:
    """A worker is added while the others read a large checkpoint: it gets the time to read it, too"""
    its = Chronicle(replicas=3, rollout={"timeouts": {"stageSeconds": 100}})
    its.fleet.slow_seconds = 80.0
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 80.0
    its.fleet.publish("2")
    its.go(6, seconds=5.0)
    its.fleet.scale(4)
    its.go(9, seconds=10.0)
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 0.0
    if its.fleet.weights.phase is RolloutPhase.HALTED:
        its.fleet.fail(6, "version 2 is abandoned, and each worker reads it in time")
    return its.end()


def a_late_load_before_the_next_version() -> Chronicle:
    """A worker ends its load after the rollback, and another reads the next version for long: it goes back"""
    its, late = _a_late_load()
    its.go(30, seconds=8.0)
    if ("resume 1", late.name) not in its.fleet.wire.sent:
        its.fleet.fail(3, "a worker is paused while another one stages, and does not go back")
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 0.0
    return its.end()


def a_late_load_that_cannot_go_back() -> Chronicle:
    """The same, and the worker can read the applied version no more: it is fenced at the limit"""
    its, late = _a_late_load()
    late.worker.bad_sources.add("/weights/step_1")
    its.go(30, seconds=8.0)
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 0.0
    late.worker.bad_sources.clear()
    return its.end()


def a_load_of_an_abandoned_version_that_hangs() -> Chronicle:
    """A load hangs, and its version is abandoned: its worker is fenced at the limit, and joins the others"""
    its = Chronicle(replicas=3, rollout={"timeouts": _SHORT, "pause": _SHORT_DRAIN})
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    hangs = its.fleet.pod(2)
    hangs.worker.slow_seconds, hangs.suspect = 1000.0, True
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    hangs.worker.slow_seconds = 0.0
    its.go(30, seconds=8.0)
    its.fleet.publish("3")
    return its.end()


def _a_late_load() -> tuple[Chronicle, FakePod]:
    """One worker has loaded an abandoned version when the next one is requested, and one reads it slowly."""
    timeouts = _SHORT | {"stageSeconds": 2000}
    its = Chronicle(replicas=3, rollout={"timeouts": timeouts, "pause": _SHORT_DRAIN})
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    reader, late = its.fleet.pod(0), its.fleet.pod(2)
    late.worker.slow_seconds, late.suspect = 45.0, True
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.until(lambda: its.fleet.serving == ["1", "1"], seconds=1.0)
    reader.worker.slow_seconds = 300.0
    its.fleet.publish("3")
    its.until(lambda: late.worker.label == "2", seconds=1.0)
    late.worker.slow_seconds = 0.0
    return its, late


STORIES: list[Story] = [
    a_change_to_a_barrier_while_workers_are_missing,
    a_version_that_kills_every_canary,
    workers_that_are_away_during_the_judgement,
    a_worker_that_joins_late_in_the_staging,
    a_late_load_before_the_next_version,
    a_late_load_that_cannot_go_back,
    a_load_of_an_abandoned_version_that_hangs,
]
