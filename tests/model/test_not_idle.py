"""Workers whose engine does not end its requests: a fence cannot end them."""

from __future__ import annotations

import pytest
from tests.model.promises import PromiseBroken
from tests.model.simulator import Simulation

from fleet_worker.protocol import Epoch, FenceRequest, LoadRequest, Phase

FOREVER_SECONDS = 10_000.0


def fenced_while_paused(fleet: Simulation, *, careless: bool) -> Epoch:
    """The operator fences a paused worker whose engine does not end its request, and then dies."""
    (pod,) = fleet.pods.values()
    worker = pod.worker
    worker.careless = careless
    fleet.publish("2")
    fleet.until(lambda: worker.phase is Phase.PAUSED and worker.staged == "2")
    worker.requests.generate(0.5)
    fleet.cling(pod, FOREVER_SECONDS)
    assert worker.epoch is not None
    epoch = Epoch(term=worker.epoch.term + 1, sequence=0)
    worker.take(FenceRequest(reason="a test", epoch=epoch), fleet.now)
    return epoch


def load(fleet: Simulation, epoch: Epoch) -> None:
    (worker,) = fleet.workers.values()
    worker.take(LoadRequest(version="2", epoch=epoch), fleet.now)


def test_the_first_promise_catches_workers_that_loaded_under_requests_they_could_not_end() -> None:
    fleet = Simulation(seed=1, replicas=1, slow_seconds=2.5)
    fleet.settle()
    epoch = fenced_while_paused(fleet, careless=True)
    fleet.tick(31.0)
    (worker,) = fleet.workers.values()
    assert worker.phase is Phase.JOINING, "the end of its lease has resumed its engine"
    load(fleet, epoch)
    with pytest.raises(PromiseBroken) as broken:
        fleet.check()

    assert broken.value.number == 1


def test_a_worker_that_is_not_idle_takes_no_load_and_ends_its_process() -> None:
    fleet = Simulation(seed=1, replicas=1, slow_seconds=2.5)
    fleet.settle()
    epoch = fenced_while_paused(fleet, careless=False)
    fleet.tick(31.0)
    (worker,) = fleet.workers.values()
    load(fleet, epoch)
    fleet.check()
    assert worker.label == worker.weights == "1"
    assert worker.lives_on
    fleet.tick(60.0)

    assert worker.restarts == 1
    assert not worker.lives_on


@pytest.mark.parametrize("seconds", [2.0, 20.0, 100.0])
@pytest.mark.parametrize("strategy", ["Synchronized", "Rolling", "InFlight"])
def test_a_fleet_converges_though_a_worker_could_not_end_its_requests(
    strategy: str, seconds: float
) -> None:
    fleet = Simulation(seed=3, replicas=3, slow_seconds=1.0, rollout={"strategy": strategy})
    fleet.settle()
    pod = fleet.pod(1)
    fleet.cling(pod, seconds)
    epoch = pod.worker.epoch or Epoch(term=0, sequence=0)
    pod.worker.take(FenceRequest(reason="a test", epoch=epoch), fleet.now)
    fleet.publish("2")
    fleet.look(200)

    assert fleet.serving == ["2", "2", "2"]
    assert fleet.converged()
