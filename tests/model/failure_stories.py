"""Named stories of workers that cannot take a version; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story
from tests.model.fake_state import Note, digest_of
from tests.model.faults import Faults

from fleet_operator.core.actions import Fence
from fleet_worker.lifecycle.refused_stages import with_refusal
from fleet_worker.protocol import PauseMode, PauseRequest, Phase, Reason
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

_SHORT = {"pauseSeconds": 20, "loadSeconds": 40}
_BACK_TO_2 = {"version": "2", "rollbackTo": "2", "digest": digest_of("2")}
"""With a digest no worker compares the files first, which would delay `Ready`."""


def two_workers_that_refuse_while_one_may() -> Chronicle:
    """Two workers refuse the files, and one may fail: they are not fenced in turn forever"""
    its = Chronicle(replicas=4, rollout={"maxFailures": 1})
    refusing = [its.fleet.pod(2), its.fleet.pod(3)]
    for ordinal in (0, 1):
        its.fleet.pod(ordinal).worker.slow_seconds = 8.5  # ends when the last one has refused
    its.fleet.publish("2")
    for late, pod in enumerate(refusing):
        pod.worker.bad_sources.add("/weights/step_2")
        pod.worker.kill(its.fleet.now, back_after_seconds=4.0 * late)
    its.go(60)
    fences = [e for e in its.fleet.log if e.what.startswith(f"{Fence.kind} on ")]
    if len(fences) > len(refusing):
        its.fleet.fail(6, f"workers that refuse the files were fenced {len(fences)} times")
    for pod in refusing:
        pod.worker.bad_sources.clear()
    return its.end()


def an_engine_that_refuses_a_version_while_its_worker_joins() -> Chronicle:
    """The engine of the only worker breaks on the new version while it joins: the rollout halts"""
    its = Chronicle(replicas=1, rollout={"strategy": "InFlight"})
    (pod,) = its.fleet.pods.values()
    its.fleet.publish("2")
    pod.worker.breaking_versions.add("2")
    pod.worker.kill(its.fleet.now)
    its.until(lambda: pod.worker.load_failure is not None, seconds=1.0)
    its.go(30)
    if its.fleet.weights.phase is not RolloutPhase.HALTED:
        its.fleet.fail(6, f"no worker can load version 2, and it is {its.fleet.weights.phase}")
    pod.worker.breaking_versions.clear()
    its.fleet.retry("the engine is repaired")
    return its.end()


def a_hung_worker_that_outlives_the_history() -> Chronicle:
    """A worker hangs, and its WeightVersion is recreated: alone, it does not take the fleet back"""
    its = Chronicle(replicas=2, rollout={"timeouts": {"stageSeconds": 20, "loadSeconds": 10}})
    serving, hung = its.fleet.pods.values()
    its.fleet.control(rollout={"strategy": "InFlight"})
    its.fleet.hang(hung)
    its.fleet.publish("2")
    its.until(lambda: "2" in its.fleet.serving, seconds=1.0)
    serving.worker.kill(its.fleet.now)
    its.until(lambda: its.fleet.fleet.applied_version == "2", seconds=1.0)
    its.fleet.delete_weights()  # and the history with it
    its.fleet.create_weights({"version": "3"})
    serving.worker.kill(its.fleet.now, back_after_seconds=8.0)
    its.fleet.hang(hung, hung=False)
    for _ in range(8):
        its.go(1)
        if (applied := its.fleet.fleet.applied) is None or applied.version == "1":
            its.fleet.fail(5, "the fleet served version 2, and its status went back to version 1")
    return its.end()


def a_hung_worker_with_a_version_that_is_served_no_more() -> Chronicle:
    """A recreated WeightVersion steps back, and a worker hangs: alone, it does not bring the version back"""
    its = Chronicle(replicas=3, rollout={"strategy": "InFlight"})
    for version in ("2", "3"):
        its.fleet.publish(version)
        its.until(its.fleet.converged, seconds=1.0)
    hung = its.fleet.pod(2)
    its.fleet.hang(hung)
    its.fleet.delete_weights()  # and the history with it
    its.fleet.create_weights({"version": "1", "rollbackTo": "1"})
    its.until(lambda: its.fleet.fleet.applied.version == "1", seconds=1.0)
    its.fleet.change_fleet("changes to Synchronized", rollout={"strategy": "Synchronized"})
    for ordinal in (0, 1):
        its.fleet.kill(its.fleet.pod(ordinal), back_after_seconds=20.0)
    its.fleet.hang(hung, hung=False)
    its.fleet.publish("4")
    for _ in range(8):
        its.go(1)
        if its.fleet.fleet.applied.version == "3":
            its.fleet.fail(5, "the fleet went back to version 1, and one worker brought back 3")
    return its.end()


def files_written_over_before_a_recreation() -> Chronicle:
    """The served version's files are written over, its WeightVersion is recreated: not Ready until restored"""
    its = Chronicle()
    its.fleet.rewrite("/weights/step_1")
    its.fleet.delete_weights()
    its.fleet.create_weights({"version": "1"})
    its.until(lambda: its.fleet.stalled)
    its.fleet.restore("/weights/step_1")
    return its.end()


def a_comparison_that_is_answered_after_a_recreation() -> Chronicle:
    """A worker compares files, which are written over for another WeightVersion before its answer comes"""
    its = Chronicle()
    its.fleet.delete_weights()
    its.fleet.create_weights({"version": "1"})
    its.fleet.faults = Faults(answer_late=1.0)
    its.fleet.reconcile()
    its.fleet.faults = Faults()
    (compares,) = its.fleet.leader.flights.values()
    compares.arrives_at, compares.answer_seconds = its.fleet.now, 5.0
    its.go(1)
    its.fleet.rewrite("/weights/step_1")
    its.fleet.delete_weights()
    its.fleet.create_weights({"version": "1"})
    its.until(lambda: its.fleet.stalled)
    its.fleet.restore("/weights/step_1")
    return its.end()


def an_engine_that_breaks_at_each_attempt() -> Chronicle:
    """One engine breaks whenever it loads the version: the rollout is never Applied, and stays reported"""
    its = Chronicle(rollout={"strategy": "InFlight", "maxFailures": 1})
    its.fleet.will_break("2", its.fleet.pod(2))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.pod(2).worker.load_failure)
    its.go(1)
    for _ in range(40):
        its.go(1)
        if its.fleet.weights.phase is RolloutPhase.APPLIED or its.fleet.stalled is None:
            its.fleet.fail(6, "the rollout counts as applied between two attempts")
    return its


def a_worker_that_no_version_lets_in() -> Chronicle:
    """The files of both versions are rewritten: a worker cannot join, and this stays the reason"""
    timeouts = {"stageSeconds": 20, "loadSeconds": 10}
    its = Chronicle(replicas=2, rollout={"strategy": "Rolling", "timeouts": timeouts})
    its.fleet.delete(its.fleet.pod(1))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.pod(0).worker.staged == "2")
    for version in ("1", "2"):
        its.fleet.rewrite(f"/weights/step_{version}")
    its.go(20, seconds=5.0)
    said = its.fleet.stalled.reason if its.fleet.stalled else None
    if said != ConditionReason.DIGEST_MISMATCH:
        its.fleet.fail(
            6, f"a worker cannot join, since files were rewritten, and Stalled says {said}"
        )
    return its


def a_rollback_under_a_worker_that_loads() -> Chronicle:
    """A worker is loading when its trainer goes back: it must swap again, and nothing is applied yet"""
    its = Chronicle(replicas=2, rollout={"strategy": "Rolling"})
    loading, staging = its.fleet.pods.values()
    its.fleet.get_ahead(loading)  # its phase has another name, so that it does not count as held
    its.fleet.publish("2")
    its.until(lambda: {w.label for w in its.fleet.workers.values()} == {"2"})
    its.go(2)
    staging.worker.slow_seconds = 8.5
    its.fleet.publish("3")
    its.until(lambda: loading.worker.staged == "3")
    loading.worker.slow_seconds = 8.5
    its.until(lambda: loading.worker.phase is Phase.LOADING)
    its.fleet.ask("trainer", "goes back to 2", _BACK_TO_2)
    its.go(2)
    if its.fleet.weights.phase is RolloutPhase.APPLIED:
        its.fleet.fail(9, f"{loading.name} loads version 3, and version 2 counts as applied")
    return its.end()


def a_rollback_under_a_worker_of_a_newer_release() -> Chronicle:
    """A worker is loading, in a word of a newer release, when its trainer goes back: not Ready yet"""
    its = Chronicle(replicas=2)
    loading = its.fleet.pod(0)
    its.fleet.get_ahead(loading)
    its.fleet.publish("2")
    its.until(lambda: {w.label for w in its.fleet.workers.values()} == {"2"})
    its.go(2)
    loading.worker.slow_seconds = 8.5
    its.fleet.publish("3")
    its.until(lambda: loading.worker.phase is Phase.LOADING)
    its.fleet.ask("trainer", "goes back to 2", _BACK_TO_2)
    its.go(4)
    return its.end()


def an_engine_that_refuses_a_version_once() -> Chronicle:
    """One engine may fail, and fails once: its worker swaps again when all others have swapped"""
    its = Chronicle(replicas=3, rollout={"strategy": "Rolling", "maxFailures": 1})
    refusing = its.fleet.pod(1).worker
    refusing.breaking_versions.add("2")
    its.fleet.publish("2")
    its.until(lambda: refusing.load_failure is not None)
    refusing.breaking_versions.clear()
    its.go(110)
    if refusing.label != "2":
        its.fleet.fail(6, "a worker whose engine refused version 2 once does not try again")
    return its.end()


def an_admission_that_arrives_late() -> Chronicle:
    """An admission at version 1 is under way for seconds: the other worker waits with version 2"""
    its = Chronicle(replicas=2)
    late = its.fleet.pod(1)
    late.worker.kill(its.fleet.now)
    its.fleet.pod(0).worker.slow_seconds = 6.5  # has staged when the other one has joined
    its.fleet.publish("2")
    its.until(lambda: late.worker.phase is Phase.JOINING and late.worker.label == "1")
    its.fleet.faults = Faults(answer_late=1.0)
    its.until(lambda: its.fleet.leader.flights.get(late.uid) is not None)
    its.fleet.faults = Faults()
    its.fleet.leader.flights[late.uid].arrives_at = its.fleet.now + 5.0
    its.fleet.pod(0).worker.slow_seconds = 0.1
    late.worker.slow_seconds = 30.0
    its.go(60, seconds=0.1)
    return its.end()


def an_admission_of_a_former_leader_that_arrives_late() -> Chronicle:
    """A leader that knows of no admission fences a worker that has accepted no call of its term"""
    its = Chronicle(replicas=2)
    late = its.fleet.pod(1)
    late.worker.kill(its.fleet.now)
    its.fleet.pod(0).worker.slow_seconds = 6.5
    its.fleet.publish("2")
    its.until(lambda: late.worker.phase is Phase.JOINING and late.worker.label == "1")
    its.fleet.faults = Faults(answer_late=1.0)
    its.until(lambda: its.fleet.leader.flights.get(late.uid) is not None)
    its.fleet.faults = Faults()
    its.fleet.leader.flights[late.uid].arrives_at = its.fleet.now + 5.0
    its.until(lambda: its.fleet.pod(0).worker.phase is Phase.PAUSED)
    refused = Note("2", Reason.CHECKPOINT_TRUNCATED, its.fleet.now + 2.0)
    late.worker.refused_stages = with_refusal((), refused)  # the next leader does not call it
    its.fleet.start_operator()
    its.fleet.pod(0).worker.slow_seconds = 0.1
    its.go(60, seconds=0.1)
    return its.end()


def an_engine_that_breaks_once_while_the_applied_files_are_gone() -> Chronicle:
    """The only worker cannot read the applied files, and its engine breaks once on the new version: it serves that"""
    its = Chronicle(replicas=1, slow_seconds=15.0, rollout={"strategy": "Rolling"})
    (pod,) = its.fleet.pods.values()
    its.fleet.rewrite("/weights/step_1")
    pod.worker.breaking_versions.add("2")
    pod.worker.kill(its.fleet.now)
    its.fleet.publish("2")
    its.until(lambda: pod.worker.load_failure is not None, seconds=1.0)
    pod.worker.breaking_versions.clear()
    its.go(65)  # it reads the files of version 1 only once
    if its.fleet.serving != ["2"]:
        its.fleet.fail(6, "the worker can load version 2, and does not serve it")
    return its.end()


def a_version_that_comes_late_in_a_pause() -> Chronicle:
    """Workers were paused for long when they are ready for the next version at last: they get the time for it"""
    its = Chronicle(replicas=4, rollout={"timeouts": _SHORT})
    odd = its.fleet.pod(2)
    its.fleet.reject(odd, "load")
    its.fleet.publish("2")
    its.until(lambda: [w.label for w in its.fleet.workers.values()].count("2") == 3)
    its.fleet.publish("3")
    its.go(10, seconds=20.0)  # the others wait for it at version 2
    for worker in its.fleet.workers.values():
        worker.bad_sources.add("/weights/step_1")  # they cannot go back to version 1
    its.fleet.obey(odd)
    odd.suspect = False
    odd.worker.staged = None
    odd.worker.slow_seconds = 45.0
    its.until(lambda: odd.worker.staged == "3", seconds=1.0)
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 22.0
    its.go(30)
    return its.end()


def a_load_under_many_leaders() -> Chronicle:
    """A worker does not load, and the leader changes every 35 s: the others do not wait for it without an end"""
    its = Chronicle(replicas=3, rollout={"timeouts": _SHORT, "maxFailures": 1})
    odd = its.fleet.pod(2)
    its.fleet.reject(odd, "load")
    its.fleet.publish("2")
    its.until(lambda: [w.label for w in its.fleet.workers.values()].count("2") == 2)
    while its.fleet.serving.count("2") < 2:
        its.go(7, seconds=5.0)
        its.fleet.start_operator()
    return its.end()


def a_superseded_version_of_a_canary_rollout() -> Chronicle:
    """A worker does not load a version that its canary has passed, and a newer one is published: it is fenced"""
    its = Chronicle(replicas=4, rollout={"strategy": "Canary", "timeouts": _SHORT})
    odd = its.fleet.pod(2)
    its.fleet.reject(odd, "load")
    its.fleet.publish("2")
    its.until(lambda: [w.label for w in its.fleet.workers.values()].count("2") == 3)
    its.fleet.publish("3")
    its.go(80, seconds=5.0)
    return its.end()


def a_late_admission_to_a_worker_that_breaks() -> Chronicle:
    """A new leader does not know of an admission to a worker, whose engine breaks and which is cut off"""
    its = Chronicle(replicas=3, rollout={"timeouts": _SHORT, "maxFailures": 1})
    joins = its.fleet.pod(2)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    for ordinal in (0, 1):
        its.fleet.pod(ordinal).worker.slow_seconds = 35.0
    its.fleet.kill(joins, back_after_seconds=0.1)
    its.until(lambda: joins.worker.staged == "2", seconds=0.5)
    joins.worker.slow_seconds = 5.0
    its.fleet.will_break("2", joins)
    its.until(lambda: joins.worker.phase is Phase.BROKEN, seconds=0.5)
    its.fleet.start_operator()
    its.go(1, seconds=0.3)
    its.fleet.cut_off(joins)
    its.go(100, seconds=5.0)
    return its.end()


def a_superseded_version_that_broke_an_engine() -> Chronicle:
    """One engine breaks on a version, and a newer one has no files yet: the others serve what they loaded"""
    its = Chronicle(replicas=3, rollout={"timeouts": _SHORT, "maxFailures": 1})
    breaks = its.fleet.pod(2)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.pod(1).worker.slow_seconds, breaks.worker.slow_seconds = 8.0, 5.0
    its.fleet.will_break("2", breaks)
    its.until(lambda: its.fleet.pod(0).worker.label == "2")
    its.fleet.publish("3")
    its.fleet.files.absent.add("/weights/step_3")
    its.go(80, seconds=5.0)
    breaks.worker.breaking_versions.clear()
    its.fleet.files.absent.clear()
    return its.end()


def a_change_of_strategy_late_in_a_swap() -> Chronicle:
    """The strategy forbids mixing from the middle of the last swap on: the swap gets its whole time"""
    rollout = {"strategy": "Rolling", "timeouts": _SHORT}
    its = Chronicle(replicas=3, slow_seconds=2.0, rollout=rollout)
    its.fleet.publish("2")
    its.fleet.pod(0).worker.slow_seconds = 25.0
    its.go(28)
    its.fleet.control(rollout={"strategy": "Synchronized"})
    its.go(30)
    if its.fleet.weights.phase is RolloutPhase.HALTED:
        its.fleet.fail(6, "version 2 is abandoned while the last worker loads it in time")
    return its.end()


def a_label_whose_pin_was_dropped() -> Chronicle:
    """The status has room for two pins, and a trainer goes back under a label of other files: refused"""
    its = Chronicle(replicas=1, pins=2)
    for version in ("2", "3", "4", "5"):
        its.fleet.publish(version)
        its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    its.fleet.rewrite("/weights/step_2")
    its.fleet.ask("trainer", "goes back to 2", {"version": "2", "rollbackTo": "2"})
    its.go(5)
    said = its.fleet.stalled.reason if its.fleet.stalled else None
    if said != ConditionReason.DIGEST_REQUIRED:
        its.fleet.fail(9, f"a label without a pin comes again, and Stalled says {said}")
    its.fleet.publish("6")
    return its.end()


def goes_to(status: FleetStatus) -> str:
    """The version that the stored status names as the goal."""
    return "" if status.transition is None else status.transition.version


def a_pause_that_ends_while_nothing_can_be_written() -> Chronicle:
    """A worker is paused in a Rolling rollout while the next one cannot be written down: it serves again"""
    short = {
        "timeouts": {"pauseSeconds": 5, "loadSeconds": 10},
        "pause": {"drainTimeoutSeconds": 5},
    }
    its = Chronicle(replicas=3, rollout={"strategy": "Rolling"} | short)
    for ordinal in (1, 2):
        its.fleet.pod(ordinal).worker.slow_seconds = 100.0
    its.fleet.publish("2")
    held = its.fleet.pod(0).worker
    its.until(lambda: held.label == "2" and held.phase is Phase.SERVING)
    its.fleet.publish("3")
    its.until(lambda: goes_to(its.fleet.fleet_stored) == "3")
    its.fleet.note("fault", "no status can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.fleet.publish("4")
    assert held.epoch is not None
    pause = PauseRequest(
        mode=PauseMode.KEEP, drain_timeout_seconds=0, lease_seconds=30, epoch=held.epoch
    )
    held.take(pause, its.fleet.now)
    its.until(lambda: held.phase is Phase.PAUSED)
    its.go(15, seconds=10.0)
    its.fleet.faults = Faults()
    for worker in its.fleet.workers.values():
        worker.slow_seconds = 0.0
    return its.end()


STORIES: list[Story] = [
    a_label_whose_pin_was_dropped,
    a_late_admission_to_a_worker_that_breaks,
    a_superseded_version_that_broke_an_engine,
    a_change_of_strategy_late_in_a_swap,
    a_load_under_many_leaders,
    a_superseded_version_of_a_canary_rollout,
    a_version_that_comes_late_in_a_pause,
    an_engine_that_breaks_once_while_the_applied_files_are_gone,
    an_admission_that_arrives_late,
    an_admission_of_a_former_leader_that_arrives_late,
    an_engine_that_refuses_a_version_once,
    a_rollback_under_a_worker_that_loads,
    a_rollback_under_a_worker_of_a_newer_release,
    a_hung_worker_that_outlives_the_history,
    a_hung_worker_with_a_version_that_is_served_no_more,
    files_written_over_before_a_recreation,
    a_comparison_that_is_answered_after_a_recreation,
    an_engine_that_breaks_at_each_attempt,
    a_worker_that_no_version_lets_in,
    two_workers_that_refuse_while_one_may,
    a_pause_that_ends_while_nothing_can_be_written,
    an_engine_that_refuses_a_version_while_its_worker_joins,
]
