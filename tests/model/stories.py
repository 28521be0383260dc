"""Named stories. Each is a function with a title; `golden/` holds the lines of some."""

from __future__ import annotations

from tests.model import (
    adapter_stories,
    failure_stories,
    scaling_stories,
    settings_stories,
    timing_stories,
    unheeded_stories,
)
from tests.model.chronicle import Chronicle, Story
from tests.model.fake_state import digest_of
from tests.model.faults import Faults
from tests.model.leader import WriteFleet
from tests.model.simulator import NODES

from fleet_operator.core.actions import Load
from fleet_worker.protocol import Phase
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutPhase


def a_rollout() -> Chronicle:
    """A rollout: stage all, pause all, load all, resume all"""
    its = Chronicle()
    its.fleet.publish("2")
    return its.end()


def a_newer_version_while_all_are_paused() -> Chronicle:
    """A newer version while all are paused: they go on at once, and the newest follows"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.publish("3")
    return its.end()


def a_damaged_checkpoint() -> Chronicle:
    """A damaged checkpoint: it is reported, nothing is touched, and after its repair it is loaded"""
    its = Chronicle()
    its.fleet.spoil("2", *its.fleet.pods.values())
    its.fleet.publish("2")
    its.go(6, seconds=2.0)
    its.fleet.note("user", "repairs the files")
    its.fleet.repair()
    return its.end()


def a_load_that_breaks_an_engine() -> Chronicle:
    """A load that breaks an engine: all workers go back, and the version is abandoned"""
    its = Chronicle()
    its.fleet.will_break("2", its.fleet.pod(1))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    its.go(2)
    its.fleet.publish("3")
    return its.end()


def an_operator_that_dies_while_loading() -> Chronicle:
    """An operator that dies after the first load: the next one reads the workers and continues"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.faults = Faults(operator_dies_after=1)
    its.go(1, seconds=12.0)
    return its.end()


def a_leader_that_resumes_late() -> Chronicle:
    """A leader that comes back after a freeze: its calls carry an old epoch and are refused"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.decide()
    former = its.fleet.leader
    its.fleet.freeze_operator()
    its.fleet.publish("3")
    its.go(2)
    while former in its.fleet.former_leaders:
        its.fleet.wake_former(former)
    return its.end()


def no_operator_for_a_while() -> Chronicle:
    """No operator for 40 seconds in the middle of a pause: it ends by itself"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.note("fault", "no operator for 40 seconds")
    its.fleet.tick(40.0)
    its.show()
    its.fleet.start_operator()
    return its.end()


def a_worker_that_dies_in_a_pause() -> Chronicle:
    """A worker that dies in a pause: the others go on without it, and it joins them"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.kill(its.fleet.pod(2))
    return its.end()


def a_worker_that_hangs() -> Chronicle:
    """A worker that hangs: out of the Service for good before the others serve another version"""
    its = Chronicle()
    hung = its.fleet.pod(1)
    its.fleet.hang(hung)
    its.fleet.publish("2")
    its.until(lambda: "2" in its.fleet.serving, seconds=1.0)
    its.fleet.hang(hung, hung=False)
    return its.end()


def a_canary_that_is_refused() -> Chronicle:
    """A canary that is refused: no other worker ever had the version"""
    its = Chronicle(rollout={"strategy": "Canary"})
    its.fleet.odd_versions.add("2")
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    its.fleet.publish("3")
    return its.end()


def a_canary_that_has_lost_the_applied_weights() -> Chronicle:
    """The only worker restarts while its files are away: it loads the applied version before the next"""
    its = Chronicle(replicas=1, rollout={"strategy": "Canary"})
    its.fleet.rewrite("/weights/step_1")
    for pod in list(its.fleet.pods.values()):
        its.fleet.kill(pod)
    its.until(lambda: its.all_are(Phase.JOINING))
    its.fleet.restore("/weights/step_1")
    its.fleet.odd_versions.add("2")
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled)
    its.fleet.publish("3")
    return its.end()


def a_canary_without_a_baseline() -> Chronicle:
    """No worker can load the applied version any more: the next one is judged without a comparison"""
    its = Chronicle(rollout={"strategy": "Canary"})
    its.fleet.rewrite("/weights/step_1")
    for pod in list(its.fleet.pods.values()):
        its.fleet.kill(pod)
    its.fleet.publish("2")
    its.go(60, seconds=1.0)
    if its.fleet.serving != ["2", "2", "2"]:
        its.fleet.fail(6, "no worker serves, and the new version is good")
    return its.end()


def a_canary_with_a_silent_worker() -> Chronicle:
    """Only a silent worker can compare a version that is bad: the others do not judge it meanwhile"""
    its = Chronicle(rollout={"strategy": "Canary"})
    its.fleet.rewrite("/weights/step_1")
    for pod in (its.fleet.pod(1), its.fleet.pod(2)):
        its.fleet.kill(pod)
    its.until(lambda: [w.phase for w in its.fleet.workers.values()].count(Phase.JOINING) == 2)
    its.fleet.hang(its.fleet.pod(0))
    its.fleet.odd_versions.add("2")
    its.fleet.publish("2")
    its.go(9, seconds=1.0)
    its.fleet.hang(its.fleet.pod(0), hung=False)
    its.fleet.restore("/weights/step_1")
    its.until(lambda: its.fleet.stalled)
    its.fleet.publish("3")
    return its.end()


def a_rolling_rollout_that_is_rolled_back() -> Chronicle:
    """A rolling rollout that fails in the middle and is rolled back"""
    rollout = {"strategy": "Rolling", "maxUnavailable": 1, "onFailure": "Rollback"}
    its = Chronicle(rollout=rollout)
    its.fleet.will_break("2", its.fleet.pod(1))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    return its


def a_template_change_with_a_worker_to_spare() -> Chronicle:
    """A template change with a spare worker: no worker goes before another serves"""
    its = Chronicle(replicas=2, update={"maxUnavailable": 0, "maxSurge": 1})
    its.fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
    return its.end()


def a_node_that_is_lost() -> Chronicle:
    """A node that is lost, and comes back after five minutes"""
    its = Chronicle()
    its.fleet.lose_node(NODES[1], power=True)
    its.go(20, seconds=15.0)
    its.fleet.return_node(NODES[1])
    return its.end()


def files_that_are_rewritten_before_anything_is_written_down() -> Chronicle:
    """Nothing can be written down from the staging on, and files are rewritten: they were not served before"""
    its = Chronicle()
    its.fleet.control(version="2", digest=digest_of("2"))
    its.go(1, seconds=0.1)  # the operation in progress is recorded, with this digest
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.go(6)
    its.fleet.rewrite("/weights/step_2")
    its.fleet.control(digest=None)
    for ordinal in range(3):
        its.fleet.kill(its.fleet.pod(ordinal))
    its.fleet.faults = Faults()
    its.fleet.start_operator()
    its.until(lambda: its.fleet.serving == ["2~rewritten"] * 3)
    return its


def a_rollout_that_cannot_be_written_down() -> Chronicle:
    """A trainer goes back to a version, and nothing can be written down: no worker takes it"""
    its = Chronicle()
    for version in ("2", "1", "2"):
        its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
        its.fleet.control(version=version, rollbackTo=version)
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.go(6)
    its.fleet.faults = Faults()
    its.fleet.will_break("3", its.fleet.pod(0))
    its.fleet.publish("3")
    its.fleet.start_operator()
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.HALTED, seconds=1.0)
    its.until(lambda: its.fleet.serving == ["1", "1", "1"], seconds=1.0)
    return its


def a_checkpoint_that_comes_late() -> Chronicle:
    """A version that is published before its checkpoint exists: it is never abandoned"""
    timeouts = {"stageSeconds": 30, "checkpointSeconds": 90}
    its = Chronicle(rollout={"timeouts": timeouts})
    its.fleet.files.absent.add("/weights/step_2")
    its.fleet.publish("2")
    its.go(16, seconds=10.0)
    its.fleet.note("trainer", "writes the checkpoint of version 2")
    its.fleet.files.absent.clear()
    its.fleet.until(lambda: its.fleet.serving == ["2", "2", "2"])
    return its.end()


def a_pod_that_a_queue_holds_back() -> Chronicle:
    """A pod behind a scheduling gate: the others take the next versions one by one, and nothing is
    said to need attention"""
    its = Chronicle(rollout={"strategy": "Rolling", "maxUnavailable": 1})
    its.fleet.hold_new_pods()
    its.fleet.scale(4)
    its.fleet.publish("2")
    its.fleet.until(lambda: its.fleet.serving == ["2", "2", "2"])
    its.go(4, seconds=400.0)  # longer than progressDeadlineSeconds
    its.fleet.publish("3")
    its.fleet.until(lambda: its.fleet.serving == ["3", "3", "3"])
    if its.fleet.stalled is not None:
        its.fleet.fail(6, f"a gated pod makes the fleet stall: {its.fleet.stalled.message}")
    its.fleet.hold_new_pods(hold=False)
    return its.end()


def a_template_change_with_a_pod_that_a_queue_holds_back() -> Chronicle:
    """A template change with a pod behind a scheduling gate: the others are recreated one by one"""
    its = Chronicle()
    its.fleet.leave_room_for(3)
    its.fleet.scale(4)
    its.until(lambda: any(p.gated for p in its.fleet.pods.values()))
    its.fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
    before = {p.uid for p in its.fleet.pods.values()}
    its.fleet.until(lambda: not before & set(its.fleet.pods) and len(its.fleet.serving) == 3)
    return its.end()


def a_template_that_cannot_be_recorded() -> Chronicle:
    """A template that cannot be recorded: no worker is taken away for it, and one that dies comes back"""
    its = Chronicle(replicas=2)
    its.fleet.refuse_templates()
    its.fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
    its.go(3, seconds=5.0)
    its.fleet.kill(its.fleet.pod(1))
    its.go(3, seconds=5.0)
    its.fleet.start_operator()
    its.go(3, seconds=5.0)
    return its.end()


def a_status_that_was_lost() -> Chronicle:
    """A status that was lost: a silent worker may serve an unrecorded version"""
    its = Chronicle(replicas=2)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.kill(its.fleet.pod(1))
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.until(lambda: its.fleet.serving == ["2"])
    its.fleet.cut_off(its.fleet.pod(0))
    its.fleet.start_operator()
    its.go(8)
    return its.end()


def a_leader_whose_clock_stopped() -> Chronicle:
    """A leader whose clock stood still wakes up: refused, it reads the Lease and ends"""
    its = Chronicle()
    its.fleet.publish("b")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.decide()
    sleeper = its.fleet.leader
    sleeper.todo.reverse()
    while not isinstance(sleeper.todo[0], Load):  # it has written its status
        its.fleet.act()
    its.fleet.suspend_operator(60.0)
    its.show()
    its.fleet.publish("c")  # labels without numbers: else the rule for numbers would stop it, too
    its.until(lambda: its.fleet.serving == ["c", "c", "c"])
    its.fleet.publish("d")
    its.until(lambda: its.all_are(Phase.PAUSED))  # as the sleeper has left them
    while sleeper in its.fleet.former_leaders:
        its.fleet.wake_former(sleeper)
        its.fleet.tick(0.1)
        its.show()
    return its.end()


def a_status_that_is_written_late() -> Chronicle:
    """The status of a former leader arrives late: refused, and the served version stays recorded"""
    its = Chronicle()
    its.fleet.control(runID="run")
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    its.fleet.publish("2")
    its.fleet.decide()
    former = its.fleet.leader
    while not isinstance(former.todo[0], WriteFleet):
        its.fleet.act()
    its.fleet.freeze_operator()
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    while former in its.fleet.former_leaders:
        its.fleet.wake_former(former)
    for pod in list(its.fleet.pods.values()):
        its.fleet.delete(pod)
    its.fleet.be_away(30.0)
    its.fleet.publish("1")
    its.go(6, seconds=5.0)
    its.fleet.publish("3")
    return its.end()


def a_status_that_a_former_leader_writes_first() -> Chronicle:
    """A frozen leader writes its status after the next one has read it: what it applied stays applied"""
    its = Chronicle()
    its.fleet.control(runID="run")
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    its.fleet.publish("2")
    former = its.fleet.leader
    its.until(lambda: its.fleet.decide().rollout.applied.version == "2")
    while not isinstance(former.todo[0], WriteFleet):
        its.fleet.act()
    its.fleet.freeze_operator()
    while former in its.fleet.former_leaders:
        its.fleet.wake_former(former)
    for pod in list(its.fleet.pods.values()):
        its.fleet.delete(pod)
    its.fleet.control(rollout={"strategy": "Rolling"})  # answers of workers prove nothing
    its.go(6, seconds=5.0)
    its.fleet.publish("3")
    return its.end()


def a_step_back_that_a_former_leader_records_first() -> Chronicle:
    """A frozen leader records a step back after the next one has read the status: it stays recorded"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    its.fleet.control(version="1", rollbackTo="1")
    former = its.fleet.leader
    its.until(lambda: its.fleet.decide().rollout.applied.version == "1")
    while not isinstance(former.todo[0], WriteFleet):
        its.fleet.act()
    its.fleet.freeze_operator()
    while former in its.fleet.former_leaders:
        its.fleet.wake_former(former)
    for pod in list(its.fleet.pods.values()):
        its.fleet.delete(pod)
    its.fleet.control(rollout={"strategy": "Rolling"})  # answers of workers prove nothing
    its.go(6, seconds=5.0)
    its.fleet.publish("3")
    return its.end()


def an_outage_of_130_seconds() -> Chronicle:
    """No operator for 130 seconds in the middle of a pause: no worker is late, and all are called again"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.be_away(130.0)
    its.show()
    return its.end()


def a_clock_that_is_ahead() -> Chronicle:
    """The next leader's clock is 90 seconds ahead, and then 90 behind: no worker is late"""
    its = Chronicle(slow_seconds=5.0, rollout={"timeouts": {"stageSeconds": 40}})
    its.fleet.publish("2")
    its.go(2, seconds=0.1)
    its.fleet.be_away(1.0, clock_ahead_seconds=90.0)
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.set_clock(-90.0)
    return its.end()


def a_fleet_without_a_good_version() -> Chronicle:
    """Neither the new version nor the applied one is good: it stays Stalled, and attempts rest"""
    its = Chronicle(replicas=2, rollout={"strategy": "Canary", "maxFailures": 1})
    its.fleet.rewrite("/weights/step_1")
    its.fleet.spoil("2", *its.fleet.pods.values())
    its.fleet.publish("2")
    for pod in list(its.fleet.pods.values()):
        its.fleet.kill(pod)
    its.go(8, seconds=5.0)
    for _ in range(40):
        its.go(1, seconds=0.5)
        if not its.fleet.stalled:
            its.fleet.fail(6, "no version is good, and it is not Stalled")
    return its


def an_address_that_another_pod_has() -> Chronicle:
    """An address that another pod has by the time of a call: it is refused there"""
    its = Chronicle(replicas=2)
    its.fleet.publish("2")
    its.fleet.decide()
    its.fleet.move_address(its.fleet.pod(0), its.fleet.pod(1).uid)
    while its.fleet.leader.todo:
        its.fleet.act()
    its.go(2)
    return its.end()


def a_status_that_is_lost_after_a_change_of_strategy() -> Chronicle:
    """The last worker of a rollout is paused for its load when the fleet's status is lost: it keeps its requests"""
    its = Chronicle(rollout={"strategy": "Rolling", "maxUnavailable": 1})
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving == ["2", "2", "1"])
    its.fleet.control(rollout={"strategy": "Synchronized"})
    its.until(lambda: its.fleet.pod(2).worker.phase is Phase.PAUSED)
    its.fleet.note("fault", "the status of the fleet is lost")
    its.fleet.fleet_stored = FleetStatus()
    its.fleet.start_operator()
    return its.end()


def a_swap_back_when_the_strategy_is_changed() -> Chronicle:
    """A worker has the call to swap back to the applied version, and the strategy forbids mixed versions"""
    its = Chronicle(slow_seconds=20.0, rollout={"strategy": "InFlight"})
    first = its.fleet.pod(0)
    first.worker.slow_seconds = 1.0
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving == ["2", "1", "1"])
    its.fleet.publish("1")
    its.until(lambda: first.worker.work is not None, seconds=0.1)
    its.fleet.faults = Faults(stale_view=1.0)  # the operator knows of its call alone
    its.fleet.control(rollout={"strategy": "Synchronized"})
    its.go(2, seconds=0.1)
    if ("fence", first.name) in its.fleet.wire.sent:
        its.fleet.fail(8, "a worker that swaps to the applied version is fenced")
    its.fleet.faults = Faults()
    return its.end()


def an_answer_that_is_20_seconds_old() -> Chronicle:
    """A leader looks with an answer of 20 seconds ago: its age does not count as time of the swap"""
    timeouts = {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}
    its = Chronicle(slow_seconds=30.0, rollout={"strategy": "InFlight", "timeouts": timeouts})
    its.fleet.publish("2")
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.LOADING, seconds=1.0)
    its.go(1, seconds=25.0)
    its.fleet.start_operator()  # the next leader does not hear the ends of these calls
    its.go(1, seconds=20.0)
    its.fleet.faults = Faults(stale_view=1.0)
    its.go(1)
    its.fleet.faults = Faults()
    return its.end()


def a_store_that_serves_one_worker_at_a_time() -> Chronicle:
    """Workers read one after the other, for an earlier leader, too: those that wait are not late"""
    rollout = {"maxStaging": 1, "timeouts": {"stageSeconds": 60}}
    its = Chronicle(replicas=4, slow_seconds=40.0, rollout=rollout)
    its.fleet.publish("2")
    its.go(3, seconds=10.0)
    its.fleet.start_operator()

    def all_are_held() -> bool:
        if its.fleet.weights.phase is RolloutPhase.HALTED:
            its.fleet.fail(6, "a version is given up while workers wait for their turn to read it")
        return its.all_are(Phase.PAUSED)

    its.until(all_are_held, seconds=5.0)
    return its.end()


def a_reader_whose_last_two_answers_are_lost() -> Chronicle:
    """A paused worker reads, and its resume gets no answer, either: its place is not free"""
    its = Chronicle(rollout={"maxStaging": 1})
    reader, unknown = its.fleet.pod(0), its.fleet.pod(1)
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    reader.worker.slow_seconds = 20.0
    its.fleet.publish("3")
    its.fleet.cut_off(unknown)
    its.fleet.start_operator()
    its.until(lambda: reader.worker.staging is not None)
    its.fleet.faults = Faults(stale_view=1.0)
    reader.loses_answer = True
    its.fleet.cut_off(unknown, cut=False)
    its.until(lambda: ("resume 1", reader.name) in its.fleet.wire.sent)
    its.fleet.cut_off(reader)
    its.fleet.faults = Faults()
    its.go(5)
    return its.end()


RECORDED: list[Story] = [
    a_rollout,
    a_newer_version_while_all_are_paused,
    a_damaged_checkpoint,
    a_load_that_breaks_an_engine,
    an_operator_that_dies_while_loading,
    a_leader_that_resumes_late,
    no_operator_for_a_while,
    a_worker_that_dies_in_a_pause,
    a_worker_that_hangs,
    a_canary_that_is_refused,
    a_rolling_rollout_that_is_rolled_back,
    a_template_change_with_a_worker_to_spare,
    a_node_that_is_lost,
]
"""Those that a reader should know, line by line."""
STORIES: list[Story] = [
    *RECORDED,
    a_canary_that_has_lost_the_applied_weights,
    a_canary_without_a_baseline,
    a_canary_with_a_silent_worker,
    a_status_that_was_lost,
    files_that_are_rewritten_before_anything_is_written_down,
    a_rollout_that_cannot_be_written_down,
    a_leader_whose_clock_stopped,
    a_status_that_is_written_late,
    a_status_that_a_former_leader_writes_first,
    a_step_back_that_a_former_leader_records_first,
    an_outage_of_130_seconds,
    a_clock_that_is_ahead,
    a_checkpoint_that_comes_late,
    a_pod_that_a_queue_holds_back,
    a_template_change_with_a_pod_that_a_queue_holds_back,
    a_template_that_cannot_be_recorded,
    a_fleet_without_a_good_version,
    an_answer_that_is_20_seconds_old,
    a_store_that_serves_one_worker_at_a_time,
    a_reader_whose_last_two_answers_are_lost,
    a_status_that_is_lost_after_a_change_of_strategy,
    a_swap_back_when_the_strategy_is_changed,
    an_address_that_another_pod_has,
    *scaling_stories.STORIES,
    *failure_stories.STORIES,
    *adapter_stories.STORIES,
    *settings_stories.STORIES,
    *timing_stories.STORIES,
    *unheeded_stories.STORIES,
]
