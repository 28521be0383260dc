"""The cost of a decision grows with the number of workers, and not with its square.

Counted in calls of functions, so that the speed of a machine has no part in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights, make_worker

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.decision import ADAPTERS_OF_A_STEP, decide, deciding
from fleet_operator.core.observed import FleetObserved, Watched
from fleet_operator.core.worker_view import WorkerView
from fleet_worker.protocol import Reason
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

FEW, MANY = 8, 80
GROWTH = MANY / FEW * 1.1
STRATEGIES = ("Synchronized", "InFlight", "Rolling", "Canary")


def old(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41").is_up()


def staged(n: int) -> WorkerBuilder:
    return old(n).staged("42")


def held(n: int) -> WorkerBuilder:
    return make_worker(n).paused("41", lease_seconds=10).staged("42")


def loaded(n: int) -> WorkerBuilder:
    return make_worker(n).paused("42").loaded()


def silent(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41").silent(100).ready()


SOURCE = {"path": "/weights/step_{version}"}

SITUATIONS: dict[str, Callable[[int], WorkerBuilder]] = {
    "no worker has the bytes": old,
    "all are staging": lambda n: old(n).doing("stage", "42"),
    "half have the bytes": lambda n: staged(n) if n % 2 else old(n),
    "all have the bytes": staged,
    "all refuse the bytes": lambda n: old(n).refused("42", Reason.SOURCE_NOT_FOUND),
    "all are pausing": lambda n: make_worker(n).pausing("41").staged("42"),
    "half are held": lambda n: held(n) if n % 2 else staged(n),
    "all are held": held,
    "all are loading": lambda n: make_worker(n).loading("41", into="42"),
    "half have loaded": lambda n: loaded(n) if n % 2 else held(n),
    "all have loaded": loaded,
    "half are open again": lambda n: loaded(n) if n % 2 else make_worker(n).serving("42"),
    "all serve it": lambda n: make_worker(n).serving("42"),
    "all swap": lambda n: old(n).doing("apply", "42"),
    "all loads have failed": lambda n: make_worker(n).joining(None).failed_to_load("42"),
    "half of the loads have failed": lambda n: (
        make_worker(n).joining(None).failed_to_load("42") if n % 2 else loaded(n)
    ),
    "all are joining": lambda n: make_worker(n).joining("41"),
    "no worker answers": silent,
    "half are held and the others do not answer": lambda n: held(n) if n % 2 else silent(n),
    "half are held without the bytes": lambda n: (
        make_worker(n).paused("41", lease_seconds=10) if n % 2 else old(n)
    ),
    "all are starting": lambda n: make_worker(n).starting(),
    "no pod runs": lambda n: make_worker(n).not_starting("ErrImagePull: no such image"),
    "all pods have failed": lambda n: make_worker(n).ended(),
    "all pods are outdated": lambda n: make_worker(n).serving("42").of_revision("older"),
    "all drain": lambda n: make_worker(n).serving("42").draining_since(NOW),
    "all pods are deleted": lambda n: make_worker(n).serving("41").going(gone_by=NOW),
}


def observed(
    many: int, strategy: str, situation: str, phase: RolloutPhase, *, late: bool
) -> FleetObserved:
    watched = Watched(phase_seconds=10_000.0 if late else 1.0, attempt_seconds=10_000.0)
    status = WeightsStatus(
        observed_generation=1,
        desired_version="42",
        phase=phase,
        started_at=NOW,
        phase_started_at=NOW,
    )
    wanted = make_weights("42", status=status, watched=watched)
    fleet = make_fleet(wants=wanted, replicas=many, rollout={"strategy": strategy})
    return replace(fleet, workers=workers_in(situation, many))


@cache
def workers_in(situation: str, many: int) -> tuple[WorkerView, ...]:
    return tuple(SITUATIONS[situation](n).view() for n in range(many))


@contextmanager
def counted() -> Iterator[list[int]]:
    """The number of function calls within."""
    found = [0]

    def note(_frame: Any, event: str, _arg: Any) -> None:
        if event in {"call", "c_call"}:
            found[0] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def calls_of(fleet: FleetObserved) -> int:
    with counted() as found:
        decision = decide(fleet, default_image="image", now=NOW)
    assert not decision.defects
    return found[0]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_ten_times_the_workers_cost_ten_times_the_operations(situation):
    phases = (RolloutPhase.STAGING, RolloutPhase.PAUSING, RolloutPhase.LOADING)
    for strategy, phase, late in product(STRATEGIES, phases, (False, True)):
        few = calls_of(observed(FEW, strategy, situation, phase, late=late))
        many = calls_of(observed(MANY, strategy, situation, phase, late=late))
        assert many <= GROWTH * few, f"{strategy}, {phase}, {late=}: {few} and {many} calls"


@pytest.mark.parametrize(
    "situation",
    ["no worker has the bytes", "all are staging", "all refuse the bytes", "all are joining"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_max_staging_the_cost_is_linear(strategy, situation):
    counts = []
    for many in (FEW, MANY):
        rollout = {"strategy": strategy, "maxStaging": "50%"}
        fleet = make_fleet(wants="42", replicas=many, rollout=rollout)
        counts.append(calls_of(replace(fleet, workers=workers_in(situation, many))))
    assert counts[1] <= GROWTH * counts[0]


@pytest.mark.parametrize("situation", ["all serve it", "all pods have failed", "all drain"])
def test_the_cost_of_scaling_is_linear(situation):
    counts = []
    for many in (FEW, MANY):
        fleet = make_fleet(wants="42", replicas=many // 2)
        counts.append(calls_of(replace(fleet, workers=workers_in(situation, many))))
    assert counts[1] <= GROWTH * counts[0]


@pytest.mark.parametrize(
    ("situation", "calls_each"),
    [
        ("all serve it", 4),
        ("all are staging", 4),
        ("no worker has the bytes", 18),
        ("all have the bytes", 18),
        ("all are held", 26),
        ("half are open again", 17),
        ("all are joining", 46),
    ],
)
def test_equal_workers_are_evaluated_once(situation, calls_each):
    counts = []
    for many in (FEW, MANY):
        fleet = observed(many, "Synchronized", situation, RolloutPhase.RESUMING, late=False)
        decide(fleet, default_image="image", now=NOW)  # what pods are made from is remembered
        counts.append(calls_of(fleet))
    # Whole calls for each worker: a cache that evicts in between costs a few calls in all.
    assert (counts[1] - counts[0]) // (MANY - FEW) <= calls_each


def with_adapters(many: int, slots: int) -> FleetObserved:
    spec = {"fleetRef": {"name": "policy"}, "version": "1", "source": SOURCE}
    wants = [
        make_weights(
            "1",
            name=f"adapter-{n}",
            uid=f"uid-{n}",
            spec=WeightsSpec.model_validate(spec | {"adapter": f"a{n}"}),
        )
        for n in range(many)
    ]
    return make_fleet(old(0), wants=wants, adapters={"max": slots})


@pytest.mark.parametrize("names", [6, 60], ids=["with slots", "without slots"])
def test_ten_times_the_adapters_cost_ten_times_the_operations(names):
    few, many = (calls_of(with_adapters(n, slots=n * 6 // names)) for n in (6, 60))
    assert many <= 10 * 1.1 * few, f"{few} calls for 6 adapters, {many} for 60"


def test_a_decision_about_many_adapters_has_no_step_that_costs_more_than_a_quarter_of_it():
    fleet = with_adapters(120, slots=64)
    steps, costs = deciding(fleet, default_image="image", now=NOW), list[int]()
    decision = None
    while decision is None:
        with counted() as found:
            try:
                next(steps)
            except StopIteration as ended:
                decision = ended.value
        costs.append(found[0])

    assert decision == decide(fleet, default_image="image", now=NOW)
    assert len(costs) > 120 // ADAPTERS_OF_A_STEP
    assert max(costs) < sum(costs) / 4
