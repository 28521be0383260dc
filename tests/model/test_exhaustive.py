"""All histories of small fleets between one version and the next."""

from __future__ import annotations

import pytest
from tests.model.exhaustive import Explorer
from tests.model.promises import PromiseBroken
from tests.model.simulator import Simulation
from tests.model.snapshots import copied, essence


@pytest.mark.parametrize(
    ("workers", "faults"),
    [
        pytest.param(1, 2, id="1 worker, 2 faults"),
        pytest.param(2, 1, id="2 workers, 1 fault"),
        pytest.param(3, 1, id="3 workers, 1 fault"),
        pytest.param(2, 2, id="2 workers, 2 faults", marks=pytest.mark.long),
        pytest.param(3, 2, id="3 workers, 2 faults", marks=pytest.mark.long),
    ],
)
def test_every_history_converges(workers, faults, record_property):
    explorer = Explorer(workers)

    histories = explorer.explore(faults)

    assert histories == explorer.expected(faults)
    record_property("simulated histories of small fleets", histories)


def test_histories_are_counted():
    explorer = Explorer(1)

    assert explorer.explore(0) == 1
    assert explorer.explore(1) == 1 + explorer.moments * len(explorer.faults)


def test_a_history_that_never_converges_breaks_the_promise_of_progress(monkeypatch):
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
