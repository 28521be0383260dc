"""Named stories of a fleet's life: workers that die, hang, join, come and go."""

from __future__ import annotations

import pytest
from tests.model.leader import WriteFleet
from tests.model.simulator import Simulation

from fleet_worker.protocol import Phase


@pytest.fixture
def fleet() -> Simulation:
    simulation = Simulation(seed=1)
    simulation.settle()
    simulation.log.clear()
    return simulation


def actions(fleet: Simulation) -> list[str]:
    return [e.what for e in fleet.log if e.who == "operator"]


class TestWorkersThatComeBackAsTheyWere:
    """They hang, are dropped by the Service, miss a rollout, and answer again, with an open latch."""

    def test_an_operator_that_has_just_begun_knows_it_from_the_pod(self, fleet):
        hung = fleet.pod(1)
        fleet.hang(hung)
        fleet.look(20)
        fleet.start_operator()
        fleet.publish("2")
        fleet.until(lambda: "2" in fleet.serving)

        assert hung.quarantine
        fleet.settle()

    def test_returned_workers_are_not_touched_where_nothing_changes_meanwhile(self, fleet):
        hung = fleet.pod(1)
        fleet.hang(hung)
        fleet.look(40)
        fleet.kill(fleet.pod(0))
        fleet.look(40)
        fleet.hang(hung, hung=False)

        fleet.settle()
        assert hung.uid in fleet.pods

    def test_the_rollout_does_not_wait_for_a_worker_that_has_not_come_up(self, fleet):
        fleet.kill(fleet.pod(1), back_after_seconds=100)
        fleet.publish("2")
        fleet.until(lambda: fleet.serving == ["2", "2"])

        assert not fleet.pod(1).quarantine


class TestScaling:
    def test_to_zero_and_back_comes_up_on_the_applied_version(self, fleet):
        fleet.scale(0)
        fleet.look(5)
        assert not fleet.pods
        fleet.scale(2)
        fleet.settle()

        assert {w.start_version for w in fleet.workers.values()} == {"1"}


class TestTemplates:
    @pytest.mark.parametrize(
        ("update", "least"),
        [
            pytest.param({"maxUnavailable": 1, "maxSurge": 0}, 2, id="one away at a time"),
            pytest.param({"maxUnavailable": 0, "maxSurge": 1}, 3, id="one more at a time"),
        ],
    )
    def test_a_template_change_replaces_all_workers_and_keeps_enough_serving(self, update, least):
        fleet = Simulation(seed=7, update=update)
        fleet.settle()
        before = set(fleet.pods)
        fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
        serving = []
        while not fleet.converged():
            fleet.reconcile()
            fleet.tick()
            serving.append(len(fleet.serving))

        assert min(serving) == least
        assert not before & set(fleet.pods)

    def test_a_change_waits_while_a_rollout_holds_workers(self, fleet):
        fleet.publish("2")
        fleet.until(lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
        fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
        fleet.log.clear()
        fleet.until(lambda: len(fleet.serving) == 3)

        assert not [d for d in actions(fleet) if d.startswith("DeletePod")]
        fleet.settle()


@pytest.mark.parametrize("deleted", [False, True])
def test_the_late_status_of_a_former_leader_is_refused_after_the_lease_was_deleted(fleet, deleted):
    for _ in range(3):
        fleet.start_operator()
    fleet.publish("2")
    fleet.settle()
    if deleted:
        fleet.delete_lease()
    fleet.publish("3")
    fleet.settle()
    fleet.publish("4")
    fleet.decide()
    late = fleet.leader
    while not isinstance(late.todo[0], WriteFleet):
        fleet.act()
    fleet.freeze_operator()
    fleet.until(lambda: fleet.converged() and not fleet.leader.todo)
    stored = fleet.fleet_stored
    while late in fleet.former_leaders:
        fleet.wake_former(late)

    assert stored.applied_version == "4"
    assert fleet.fleet_stored == stored
