"""Named stories of the other strategies: InFlight, Rolling and Canary."""

from __future__ import annotations

import pytest
from tests.model.simulator import Simulation

from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase


def settled(**given) -> Simulation:
    fleet = Simulation(seed=6, **given)
    fleet.settle()
    fleet.log.clear()
    return fleet


def calls(fleet: Simulation, worker: str = "policy-") -> list[str]:
    return [e.what for e in fleet.log if f" on {worker}" in e.what]


def test_an_override_of_the_version_wins_over_the_fleets_settings():
    fleet = settled()
    fleet.control(rollout={"strategy": "InFlight"})
    fleet.publish("2")
    fleet.settle()

    assert "apply 2 on policy-0" in calls(fleet)


@pytest.mark.parametrize(("seconds", "phase"), [(35, "Applied"), (50, "Halted")])
@pytest.mark.parametrize("what", ["a new leader comes", "it is tried again"])
def test_a_swap_is_late_as_its_worker_reports_it(seconds, phase, what):
    timeouts = {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}
    fleet = settled(rollout={"strategy": "InFlight", "timeouts": timeouts})
    for worker in fleet.workers.values():
        worker.slow_seconds = seconds
    fleet.publish("2")
    fleet.until(lambda: fleet.weights.phase is RolloutPhase.LOADING)
    fleet.look(20)
    if what == "a new leader comes":
        fleet.start_operator()
    else:
        fleet.retry("in the middle")
    fleet.look(60)

    assert fleet.weights.phase == phase


ROLLING = {"strategy": "Rolling", "maxUnavailable": 1}


class TestRolling:
    @pytest.mark.parametrize(
        ("on_failure", "versions"),
        [
            pytest.param("Halt", {"1", "2"}, id="Halt keeps each worker's version"),
            pytest.param("Rollback", {"1"}, id="Rollback reloads the applied version"),
        ],
    )
    def test_a_failure_in_the_middle(self, on_failure, versions):
        fleet = settled(rollout=ROLLING | {"onFailure": on_failure})
        fleet.will_break("2", fleet.pod(1))
        fleet.publish("2")
        fleet.until(lambda: fleet.weights.phase is RolloutPhase.HALTED)
        fleet.look(60, seconds=0.5)

        assert len(fleet.serving) == 3
        assert set(fleet.serving) == versions


class TestCanary:
    @pytest.mark.parametrize("replicas", [1, 3])
    def test_a_good_one_is_followed_by_the_others(self, replicas):
        fleet = Simulation(seed=8, replicas=replicas, rollout={"strategy": "Canary"})
        fleet.settle()
        assert "probe base on policy-0" in calls(fleet)  # the model's own weights are the baseline
        fleet.log.clear()
        fleet.publish("2")
        fleet.settle()

        kinds = [line.split(" ")[0] for line in calls(fleet, "policy-0")]
        assert kinds == ["stage", "fence", "load", "probe", "admit"]
        assert fleet.weights.canary.passed

    @pytest.mark.parametrize("replicas", [1, 3])
    def test_a_refused_canary_rolls_back_and_no_other_worker_had_the_version(self, replicas):
        fleet = settled(replicas=replicas, rollout={"strategy": "Canary"})
        fleet.odd_versions.add("2")
        fleet.publish("2")
        fleet.until(lambda: fleet.stalled and fleet.serving == ["1"] * replicas)

        verdict = fleet.weights.canary
        assert not verdict.passed
        assert verdict.kl == 9.0
        assert fleet.stalled.reason is ConditionReason.CANARY_REFUSED
        assert "KL 9000" in fleet.stalled.message
        assert "load 2 on policy-1" not in calls(fleet)

        fleet.publish("3")
        fleet.settle()

    @pytest.mark.parametrize("slow_seconds", [0, 35])
    def test_a_fleet_without_a_good_version_stays_stalled_and_stops_its_attempts(
        self, slow_seconds
    ):
        rollout = {"strategy": "Canary", "maxFailures": 1}
        fleet = settled(replicas=2, rollout=rollout, slow_seconds=slow_seconds)
        fleet.rewrite("/weights/step_1")
        fleet.spoil("2", *fleet.pods.values())
        fleet.publish("2")
        for pod in list(fleet.pods.values()):
            fleet.kill(pod)
        fleet.look(300, seconds=0.5)
        fleet.log.clear()
        for _ in range(200):
            fleet.look(1, seconds=0.5)
            assert fleet.stalled

        attempts = [c for c in calls(fleet) if c.startswith("stage")]
        assert len(attempts) in range(2, 2 * 100 // 10 + 1)  # by 2 workers, each 10 s

    def test_a_canary_that_dies_is_replaced_by_the_next(self):
        fleet = settled()
        fleet.control(rollout={"strategy": "Canary"})
        fleet.publish("2")
        fleet.until(lambda: fleet.pod(0).worker.weights == "2")
        fleet.hang(fleet.pod(0))
        fleet.until(lambda: fleet.weights.canary is not None)

        assert fleet.weights.canary.pods == ("policy-1",)
        fleet.settle()
        assert fleet.weights.canary.passed
