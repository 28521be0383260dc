"""Fleets that a trainer drives: the operator admits new workers and fences those with another version."""

from __future__ import annotations

import pytest
from tests.model.fake_worker import FakeWorker
from tests.model.simulator import Simulation

from rlfleet_resources.reasons import ConditionReason


def look(fleet: Simulation, times: int = 30) -> None:
    fleet.look(times, seconds=0.5)


def update(worker: FakeWorker, version: str, *, source: str | None = None) -> None:
    """The state after a trainer's own pause, update and resume."""
    worker.label = worker.weights = version
    worker.source = f"/weights/step_{version}" if source is None else source
    worker.staged = None


def restart_on_the_model(fleet: Simulation) -> None:
    """One worker dies and comes back on the model's own weights."""
    worker = fleet.workers["uid-1"]
    worker.start_version, worker.start_source = "base", "/models/base"
    fleet.kill(fleet.pods["uid-1"])


def calls_to(fleet: Simulation) -> list[str]:
    return [e.what for e in fleet.log if " on policy-" in e.what]


@pytest.fixture
def fleet() -> Simulation:
    fleet = Simulation(seed=1, management="External")
    look(fleet)
    assert all(w.generates and w.weights == "base" for w in fleet.workers.values())
    fleet.log.clear()
    return fleet


def test_workers_come_up_on_the_models_own_version_and_an_update_is_mirrored(fleet):
    for worker in fleet.workers.values():
        update(worker, "1")
    look(fleet)

    assert calls_to(fleet) == []
    assert fleet.fleet.applied_version == "1"
    assert fleet.fleet.applied.version == "1"


def test_a_new_worker_is_updated_to_what_the_others_serve(fleet):
    for worker in fleet.workers.values():
        update(worker, "1")
    look(fleet)
    restart_on_the_model(fleet)
    look(fleet)

    assert fleet.workers["uid-1"].generates
    assert fleet.workers["uid-1"].weights == "1"


def test_while_the_trainer_holds_workers_nothing_is_done(fleet):
    for worker in fleet.workers.values():
        worker.hold(1000, holder="trainer")
    update(fleet.workers["uid-1"], "1")
    look(fleet, times=20)

    assert calls_to(fleet) == []


def test_a_worker_that_differs_from_the_majority_is_fenced_and_brought_back(fleet):
    for uid in ("uid-1", "uid-2"):
        update(fleet.workers[uid], "1")
    fleet.reconcile()

    differing = fleet.workers["uid-3"]
    assert not differing.admitted

    look(fleet)
    assert differing.generates
    assert differing.weights == "1"


def test_without_a_majority_it_is_reported_and_no_worker_is_fenced(fleet):
    for number, worker in enumerate(fleet.workers.values(), start=1):
        update(worker, str(number))
    fleet.reconcile()

    assert calls_to(fleet) == []
    assert fleet.stalled.reason is ConditionReason.VERSIONS_DIFFER
    first = next(iter(fleet.workers.values()))
    assert f"{first.name}: {first.label}" in fleet.stalled.message


def test_new_workers_wait_when_the_weights_came_from_no_directory(fleet):
    for worker in fleet.workers.values():
        update(worker, "1", source="")
    look(fleet)
    restart_on_the_model(fleet)
    look(fleet)

    assert not fleet.workers["uid-1"].admitted
    assert fleet.stalled.reason is ConditionReason.SOURCE_UNKNOWN
    assert f"{fleet.workers['uid-1'].name} cannot join" in fleet.stalled.message


def test_an_operator_that_takes_over_received_weights_asks_no_worker_to_read_them(fleet):
    for worker in fleet.workers.values():
        update(worker, "1", source="")
    look(fleet)
    fleet.promises.requested.append(("1", None))  # by the trainer, without a WeightVersion
    weights = {"roots": ["/weights"], "management": "Operator"}
    fleet.change_fleet("lets the operator update the weights", weights=weights)
    restart_on_the_model(fleet)
    fleet.log.clear()
    look(fleet)

    assert calls_to(fleet) == []
    assert fleet.stalled.reason is ConditionReason.SOURCE_UNKNOWN

    fleet.create_weights({"version": "2"})
    look(fleet, times=90)  # pods of another template are replaced one by one

    assert fleet.serving == ["2", "2", "2"]
    assert fleet.stalled is None
