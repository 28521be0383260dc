"""Small fleets, all histories: nothing between one version and the next is left out."""

from __future__ import annotations

import pytest
from tests.model.exhaustive import Explorer
from tests.model.promises import PromiseBroken
from tests.model.simulator import Simulation
from tests.model.snapshots import copied, essence


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("workers", "moments", "histories"),
    [
        pytest.param(1, 24, 10_081, id="one worker"),
        pytest.param(2, 28, 46_047, id="two workers"),
        pytest.param(3, 32, 127_489, id="three workers", marks=pytest.mark.long),
    ],
)
def test_every_history_with_two_faults_comes_to_a_good_end(
    workers, moments, histories, record_property
):
    explorer = Explorer(workers)

    assert explorer.moments == moments
    assert explorer.expected() == histories
    assert explorer.explore() == histories
    record_property("simulated histories of small fleets, all there are", histories)


def test_fewer_faults_are_counted_as_they_should_be():
    explorer = Explorer(1)

    assert explorer.explore(0) == 1
    assert explorer.explore(1) == 1 + 24 * 6


def test_a_fleet_that_comes_to_no_good_end_is_told(monkeypatch):
    explorer = Explorer(1)
    monkeypatch.setattr(Simulation, "converged", lambda _: False)

    with pytest.raises(PromiseBroken) as broken:
        explorer.explore(0)

    assert broken.value.number == 6


class TestCopies:
    def test_a_copy_goes_its_own_way(self):
        fleet = Simulation(seed=0)
        fleet.settle()
        twin = copied(fleet)
        before = essence(fleet)
        assert essence(twin) == before

        twin.kill(twin.pod(0))
        twin.publish("2")
        twin.reconcile()

        assert essence(fleet) == before
        assert essence(twin) != before
        assert fleet.pod(0).worker.phase != twin.pod(0).worker.phase

    def test_both_come_to_the_same_end(self):
        fleet = Simulation(seed=0)
        fleet.shuffles = False
        fleet.settle()
        fleet.publish("2")
        twin = copied(fleet)
        for one in (fleet, twin):
            one.settle()

        assert [str(e) for e in fleet.log] == [str(e) for e in twin.log]
