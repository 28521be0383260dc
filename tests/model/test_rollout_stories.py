"""Named stories of Synchronized rollouts: the plain one, overtaken ones, refused ones, failed ones."""

from __future__ import annotations

import pytest
from tests.model.faults import Faults
from tests.model.simulator import Simulation
from tests.support.figures import figures

from fleet_worker.protocol import Phase
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase


@pytest.fixture
def fleet() -> Simulation:
    simulation = Simulation(seed=1)
    simulation.settle()
    return simulation


def calls(fleet: Simulation) -> list[str]:
    return [e.what for e in fleet.log if " on policy-" in e.what]


def all_are(fleet: Simulation, phase: Phase) -> bool:
    return all(w.phase is phase for w in fleet.workers.values())


def test_a_new_fleet_starts_directly_on_the_wanted_version(fleet):
    assert fleet.converged()
    assert not any(line.startswith("admit base") for line in calls(fleet))


def test_a_converged_fleet_writes_nothing(fleet):
    assert fleet.run_quietly() == 0


def test_an_operator_that_starts_with_a_converged_fleet_writes_nothing(fleet):
    fleet.start_operator()

    assert fleet.run_quietly() == 0


class TestOvertaken:
    def test_during_loading_the_newest_version_follows_the_shortest_end_of_the_rollout(self, fleet):
        fleet.publish("2")
        fleet.until(lambda: all_are(fleet, Phase.PAUSED))
        fleet.faults = Faults(operator_dies_after=1)
        fleet.shuffles = False
        fleet.reconcile()
        assert sorted(str(w.weights) for w in fleet.workers.values()) == ["1", "1", "2"]
        fleet.publish("3")
        fleet.until(lambda: len(fleet.serving) == 3)

        assert fleet.serving == ["2", "2", "2"]

        fleet.settle()


class TestRefused:
    def test_a_worker_that_refuses_is_left_behind_within_the_budget_and_reported(self):
        fleet = Simulation(seed=3, rollout={"maxFailures": 1})
        fleet.settle()
        fleet.log.clear()
        fleet.spoil("2", fleet.pod(0))
        fleet.publish("2")
        fleet.until(lambda: fleet.serving == ["2", "2"])

        assert calls(fleet).count("pause on policy-1") == 1
        assert not fleet.pod(0).worker.admitted
        assert figures(fleet.stalled.message) >= {1, 2}
        assert "policy-0" in fleet.stalled.message
        fleet.repair()
        fleet.settle()

    def test_a_joining_worker_that_cannot_take_the_applied_version_is_reported(self, fleet):
        fleet.bad_versions.add("1")
        fleet.applied_written, fleet.shuffles = None, False  # its pod is made before it is written
        fleet.scale(4)
        fleet.until(lambda: fleet.stalled)

        assert fleet.stalled.reason is ConditionReason.CHECKPOINT_TRUNCATED
        assert figures(fleet.stalled.message) >= {1}
        assert "policy-3" in fleet.stalled.message
        assert fleet.serving == ["1", "1", "1"]


class TestFailed:
    @pytest.mark.parametrize("may_fail", [0, 1])
    def test_a_load_that_breaks_the_only_engine_halts(self, may_fail):
        fleet = Simulation(seed=1, replicas=1, rollout={"maxFailures": may_fail})
        fleet.settle()
        fleet.will_break("2", fleet.pod(0))
        fleet.publish("2")
        fleet.log.clear()
        fleet.look(60)

        assert fleet.serving == ["1"]
        assert fleet.weights.phase is RolloutPhase.HALTED
        assert calls(fleet).count("pause on policy-0") == 1

    def test_an_abandoned_version_is_not_retried_after_an_operator_restart(self, fleet):
        fleet.will_break("2", fleet.pod(0))
        fleet.publish("2")
        fleet.until(lambda: fleet.stalled and fleet.serving == ["1", "1", "1"])
        fleet.start_operator()
        fleet.log.clear()
        fleet.look(50)

        assert calls(fleet) == []
        assert fleet.stalled.reason is ConditionReason.FAILURE_BUDGET_EXCEEDED
        assert fleet.run_quietly() == 0

    def test_one_failed_worker_is_left_behind_when_the_budget_allows(self):
        fleet = Simulation(seed=3, rollout={"maxFailures": 1})
        fleet.settle()
        fleet.will_break("2", fleet.pod(0))
        fleet.publish("2")
        fleet.until(lambda: fleet.serving == ["2", "2"])

        assert not fleet.pod(0).worker.admitted
        fleet.repair()
        fleet.settle()


class TestHeldBack:
    def test_suspend_begins_nothing_new_and_its_end_lets_the_version_through(self, fleet):
        fleet.control(suspend=True)
        fleet.publish("2")
        fleet.log.clear()
        fleet.look(20)

        assert calls(fleet) == []
        assert fleet.weights.phase is RolloutPhase.SUSPENDED

        fleet.control(suspend=False)
        fleet.settle()

    def test_suspend_in_the_middle_of_a_pause_brings_it_to_its_end(self, fleet):
        fleet.publish("2")
        fleet.until(lambda: all_are(fleet, Phase.PAUSED))
        fleet.control(suspend=True)
        fleet.until(lambda: len(fleet.serving) == 3)

        assert fleet.serving == ["2", "2", "2"]

    @pytest.mark.parametrize("looks", [0, 1, 3], ids=lambda n: f"after {n} looks")
    def test_a_run_that_went_back_continues_before_it_has_arrived_there(self, looks):
        fleet = Simulation(seed=6, slow_seconds=5)
        fleet.control(runID="run-7")
        fleet.publish("60")
        fleet.settle()
        fleet.control(version="41", rollbackTo="41")
        for _ in range(looks):
            fleet.reconcile()
        fleet.publish("42")
        fleet.reconcile()
        fleet.start_operator()
        fleet.publish("43")
        fleet.settle()

        assert fleet.serving == ["43", "43", "43"]
        assert fleet.weights.rollback_to is None
