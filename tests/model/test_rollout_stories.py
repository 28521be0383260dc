"""Named stories of Synchronized rollouts: the plain one, overtaken ones, refused ones, failed ones."""

from __future__ import annotations

import pytest
from tests.model.simulator import Simulation


@pytest.fixture
def fleet() -> Simulation:
    simulation = Simulation(seed=1)
    simulation.settle()
    return simulation


def calls(fleet: Simulation) -> list[str]:
    return [e.what for e in fleet.log if " on policy-" in e.what]


def test_a_new_fleet_starts_directly_on_the_wanted_version(fleet):
    assert fleet.converged()
    assert not any(line.startswith("admit base") for line in calls(fleet))


def test_a_converged_fleet_writes_nothing(fleet):
    assert fleet.run_quietly() == 0


def test_an_operator_that_starts_with_a_converged_fleet_writes_nothing(fleet):
    fleet.start_operator()

    assert fleet.run_quietly() == 0


class TestHeldBack:
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
