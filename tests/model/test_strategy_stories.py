"""Named stories of the other strategies: InFlight, Rolling and Canary."""

from __future__ import annotations

import pytest
from tests.model.simulator import Simulation

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
