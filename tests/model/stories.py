"""Named stories, told line by line: what was done, why, and where the workers stand.

Each is a function with a title; `told` runs one and gives its lines. The golden logs in `golden/`
are these lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tests.model.faults import Faults
from tests.model.leader import WriteFleet
from tests.model.simulator import NODES, Entry, Simulation

from fleet_operator.api.weights import RolloutPhase
from fleet_worker.protocol import Phase

Story = Callable[[], "Chronicle"]


class Chronicle:
    """A fleet that is settled on version 1, and what happens to it from now on."""

    def __init__(self, **given: object) -> None:
        self.fleet = Simulation(seed=1, **given)  # type: ignore[arg-type]
        self.fleet.shuffles = False
        self.fleet.settle()
        self.fleet.log.clear()
        self.began = self.fleet.now
        self.shown = self._standings()

    def go(self, steps: int, *, seconds: float = 1.0) -> None:
        """The operator looks so many times, with some time in between."""
        for _ in range(steps):
            self.fleet.reconcile()
            self.show()
            self.fleet.tick(seconds)
            self.show()

    def until(self, condition: Callable[[], object], *, seconds: float = 0.1) -> None:
        """Go on until something holds."""
        for _ in range(200):
            if condition():
                return
            self.go(1, seconds=seconds)
        raise AssertionError(f"the condition was never met\n{self.fleet.story()}")

    def end(self) -> Chronicle:
        """Faults end, and the fleet comes to rest."""
        self.fleet.mend()
        self.until(lambda: self.fleet.converged() and not self.fleet.leader.todo, seconds=1.0)
        return self

    def all_are(self, phase: Phase) -> bool:
        return all(w.phase is phase for w in self.fleet.workers.values())

    def lines(self) -> Iterator[str]:
        """The story; what was done to several workers for one reason stands in one line."""
        alike = itertools.groupby(self.fleet.log, key=_likeness)
        for _, group in alike:
            entries = list(group)
            first = entries[0]
            what, _, whom = first.what.partition(" on policy-")
            if whom:
                what += f" on {', '.join('policy-' + e.what.rpartition('-')[2] for e in entries)}"
            why = f": {first.why}" if first.why else ""
            yield f"{first.at - self.began:8.2f}  {first.who:<9} {what}{why}"

    def show(self) -> None:
        """Tell where the workers stand, if that has changed."""
        standings = self._standings()
        changed = [told for name, told in standings.items() if self.shown.get(name) != told]
        gone = [f"{name} is gone" for name in self.shown if name not in standings]
        if changed or gone:
            self.fleet.note("", "    " + " · ".join([*changed, *gone]))
        self.shown = standings

    def _standings(self) -> dict[str, str]:
        told = {}
        for pod in sorted(self.fleet.pods.values(), key=lambda p: p.ordinal):
            worker = pod.worker
            words = [pod.name, str(worker.phase)]
            words += [str(worker.label)] if worker.phase is not Phase.STARTING else []
            words += [f"(holds {worker.staged})"] if worker.staged else []
            words += ["(hangs)"] if worker.hung else []
            words += ["(going)"] if pod.deleted_at is not None else []
            words += ["(quarantined)"] if pod.quarantine else []
            told[pod.name] = " ".join(words)
        return told


def _likeness(entry: Entry) -> tuple[object, ...]:
    what, on, _ = entry.what.partition(" on policy-")
    apart = None if on else entry.what
    return (entry.who, round(entry.at, 2), what, entry.why, apart)


def told(story: Story) -> str:
    """One story as text."""
    assert story.__doc__
    return "\n".join([story.__doc__, "", *story().lines(), ""])


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


def a_newer_version_while_some_have_loaded() -> Chronicle:
    """A newer version while some have loaded: the shortest way out is forward"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.pod(1).worker.slow_seconds = its.fleet.pod(2).worker.slow_seconds = 3.0
    its.go(1)
    its.fleet.publish("3")
    return its.end()


def a_checkpoint_that_is_no_good() -> Chronicle:
    """A checkpoint that is no good: it is said, nothing is touched, and repaired it is taken"""
    its = Chronicle()
    its.fleet.spoil("2", *its.fleet.pods.values())
    its.fleet.publish("2")
    its.go(6, seconds=2.0)
    its.fleet.note("person", "repairs the files")
    its.fleet.repair()
    return its.end()


def a_load_that_breaks_an_engine() -> Chronicle:
    """A load that breaks an engine: everybody goes back, and the version is given up"""
    its = Chronicle()
    its.fleet.will_break("2", its.fleet.pod(1))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    its.go(2)
    its.fleet.publish("3")
    return its.end()


def an_operator_that_dies_while_loading() -> Chronicle:
    """An operator that dies after the first load: the next one reads the workers and goes on"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.faults = Faults(operator_dies_after=1)
    its.go(1, seconds=12.0)
    return its.end()


def a_leader_that_comes_back_from_the_dead() -> Chronicle:
    """A leader that comes back from the dead: its calls carry an old epoch and are refused"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.decide()
    ghost = its.fleet.leader
    its.fleet.freeze_operator()
    its.fleet.publish("3")
    its.go(2)
    while ghost in its.fleet.ghosts:
        its.fleet.haunt(ghost)
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
    """A canary that is refused: nobody else ever had the version"""
    its = Chronicle(rollout={"strategy": "Canary"})
    its.fleet.odd_versions.add("2")
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    its.fleet.publish("3")
    return its.end()


def a_rolling_rollout_that_is_taken_back() -> Chronicle:
    """A rolling rollout that fails in the middle and is taken back"""
    rollout = {"strategy": "Rolling", "maxUnavailable": 1, "onFailure": "Rollback"}
    its = Chronicle(rollout=rollout)
    its.fleet.will_break("2", its.fleet.pod(1))
    its.fleet.publish("2")
    its.until(lambda: its.fleet.stalled and its.fleet.serving == ["1", "1", "1"])
    return its


def a_template_change_with_a_worker_to_spare() -> Chronicle:
    """A template change with a worker to spare: nobody goes before another serves"""
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


def a_run_that_starts_again() -> Chronicle:
    """A run that starts again at its first step: refused until going back is said"""
    its = Chronicle()
    its.fleet.control(runID="run-7")
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving == ["2", "2", "2"])
    its.fleet.publish("1")
    its.go(12)  # more than a rollout takes
    its.fleet.control(rollbackTo="1")
    return its.end()


def a_run_that_counts_from_0_again() -> Chronicle:
    """Another run that counts alike: its weights are loaded, though the version is the same"""
    its = Chronicle()
    its.fleet.control(runID="run-7", source={"path": "/weights/run-7/step_{version}"})
    its.until(lambda: its.fleet.serving == ["1~run-7"] * 3)
    its.fleet.control(runID="run-8", source={"path": "/weights/run-8/step_{version}"})
    its.until(lambda: its.fleet.serving == ["1~run-8"] * 3)
    return its


def files_that_are_rewritten_under_their_path() -> Chronicle:
    """Files that are rewritten under their path: workers that restart do not serve them"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving == ["2", "2", "2"])
    its.fleet.rewrite("/weights/step_2")
    for ordinal in range(3):
        its.fleet.kill(its.fleet.pod(ordinal))
    its.until(lambda: its.fleet.stalled)
    its.go(3)
    its.fleet.restore("/weights/step_2")
    its.until(lambda: its.fleet.serving == ["2", "2", "2"])
    return its.end()


def files_that_are_rewritten_before_anything_is_written_down() -> Chronicle:
    """Nothing can be written down, and files are rewritten: they were not served before"""
    its = Chronicle()
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.fleet.publish("2")
    its.go(6)
    its.fleet.rewrite("/weights/step_2")
    for ordinal in range(3):
        its.fleet.kill(its.fleet.pod(ordinal))
    its.fleet.faults = Faults()
    its.fleet.start_operator()
    its.until(lambda: its.fleet.serving == ["2~rewritten"] * 3)
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


def a_load_that_lasts_longer_than_a_lease() -> Chronicle:
    """A load that lasts longer than a lease: the pause is renewed meanwhile"""
    its = Chronicle(replicas=1, slow_seconds=35.0)
    its.fleet.publish("2")
    return its.end()


def a_status_that_was_lost() -> Chronicle:
    """A status that was lost: who does not answer may serve what nobody has written down"""
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


def a_leader_whose_clock_stood_still() -> Chronicle:
    """A leader whose clock stood still wakes up: refused, it reads the Lease and ends"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.decide()
    sleeper = its.fleet.leader
    its.fleet.suspend_operator(60.0)
    its.show()
    its.fleet.publish("3")
    its.until(lambda: its.fleet.serving == ["3", "3", "3"])
    while sleeper in its.fleet.ghosts:
        its.fleet.haunt(sleeper)
        its.fleet.tick(0.1)
        its.show()
    return its.end()


def a_lease_that_is_deleted() -> Chronicle:
    """A Lease that is deleted: one refusal and one reading, and the calls of one fleet outbid"""
    its = Chronicle()
    for _ in range(6):
        its.fleet.start_operator()
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving == ["2", "2", "2"])
    its.fleet.delete_lease()
    its.fleet.publish("3")
    return its.end()


def a_status_that_is_written_late() -> Chronicle:
    """A deposed leader's status arrives late: refused, and what was served stays recorded"""
    its = Chronicle()
    its.fleet.control(runID="run")
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    its.fleet.publish("2")
    its.fleet.decide()
    ghost = its.fleet.leader
    while not isinstance(ghost.todo[0], WriteFleet):
        its.fleet.act()
    its.fleet.freeze_operator()
    its.until(lambda: its.fleet.converged() and not its.fleet.leader.todo)
    while ghost in its.fleet.ghosts:
        its.fleet.haunt(ghost)
    for pod in list(its.fleet.pods.values()):
        its.fleet.delete(pod)
    its.fleet.be_away(30.0)
    its.fleet.publish("1")
    its.go(6, seconds=5.0)
    its.fleet.publish("3")
    return its.end()


def an_outage_of_130_seconds() -> Chronicle:
    """No operator for 130 seconds in the middle of a pause: nobody is late, and all are asked again"""
    its = Chronicle()
    its.fleet.publish("2")
    its.until(lambda: its.all_are(Phase.PAUSED))
    its.fleet.be_away(130.0)
    its.show()
    return its.end()


def a_clock_that_is_ahead() -> Chronicle:
    """The next leader's clock is 90 seconds ahead, and then 90 behind: nobody is late"""
    its = Chronicle(slow_seconds=5.0, rollout={"timeouts": {"stageSeconds": 60}})
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


def an_answer_that_is_20_seconds_old() -> Chronicle:
    """A leader looks with an answer of 20 seconds ago: its age is no part of how long a swap lasts"""
    timeouts = {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}
    its = Chronicle(slow_seconds=30.0, rollout={"strategy": "InFlight", "timeouts": timeouts})
    its.fleet.publish("2")
    its.until(lambda: its.fleet.weights.phase is RolloutPhase.LOADING, seconds=1.0)
    its.go(1, seconds=25.0)
    its.fleet.retry("in the middle of the swaps")
    its.go(1, seconds=20.0)
    its.fleet.faults = Faults(stale_view=1.0)
    its.go(1)
    its.fleet.faults = Faults()
    return its.end()


STORIES: list[Story] = [
    a_rollout,
    a_newer_version_while_all_are_paused,
    a_newer_version_while_some_have_loaded,
    a_checkpoint_that_is_no_good,
    a_load_that_breaks_an_engine,
    an_operator_that_dies_while_loading,
    a_leader_that_comes_back_from_the_dead,
    no_operator_for_a_while,
    a_worker_that_dies_in_a_pause,
    a_worker_that_hangs,
    a_canary_that_is_refused,
    a_rolling_rollout_that_is_taken_back,
    a_template_change_with_a_worker_to_spare,
    a_node_that_is_lost,
    a_run_that_starts_again,
    a_status_that_was_lost,
    a_load_that_lasts_longer_than_a_lease,
    a_run_that_counts_from_0_again,
    files_that_are_rewritten_under_their_path,
    files_that_are_rewritten_before_anything_is_written_down,
    a_leader_whose_clock_stood_still,
    a_lease_that_is_deleted,
    a_status_that_is_written_late,
    an_outage_of_130_seconds,
    a_clock_that_is_ahead,
    a_checkpoint_that_comes_late,
    a_pod_that_a_queue_holds_back,
    a_fleet_without_a_good_version,
    an_answer_that_is_20_seconds_old,
]
