"""A version whose directory does not exist yet is waited for; it is never abandoned for that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
    texts_of,
)
from tests.support.figures import figures
from tests.support.present import present

from fleet_operator.core.decision import decide
from fleet_operator.core.manifests import revisions
from fleet_operator.core.observed import FleetObserved, Watched
from fleet_operator.core.rollout_plan import RolloutPlan, plan_rollout
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

STRATEGIES = ["Synchronized", "InFlight", "Rolling", "Canary"]
HOUR = 3600
APPLIED = {"version": "41", "source": {"path": "/weights/step_41"}}
PIN = {"version": "42", "digest": f"sha256:{'c' * 64}", "source": {"path": "/weights/step_42"}}


SEEN = "the source does not exist; /weights has base, step_41"


def absent(
    n: int, version: str = "42", *, age_seconds: float = 1, message: str = SEEN
) -> WorkerBuilder:
    return (
        make_worker(n)
        .serving("41")
        .probed("41")
        .refused(version, Reason.SOURCE_ABSENT, age_seconds=age_seconds, message=message)
    )


def fleet(
    *workers: WorkerBuilder,
    strategy: str = "Synchronized",
    phase: RolloutPhase = RolloutPhase.PENDING,
    seconds: float = 10,
    pinned: bool = False,
    **rollout: Any,
) -> FleetObserved:
    begun = NOW - timedelta(seconds=seconds)
    status = WeightsStatus(
        observed_generation=1,
        desired_version="42",
        phase=phase,
        started_at=begun,
        phase_started_at=begun,
    )
    watched = Watched(phase_seconds=seconds, attempt_seconds=seconds)
    stored = {"applied": APPLIED} | ({"pinned": [PIN]} if pinned else {})
    return make_fleet(
        *workers,
        wants=make_weights("42", status=status, watched=watched),
        status=FleetStatus.model_validate(stored),
        rollout={"strategy": strategy} | rollout,
    )


def plan(*workers: WorkerBuilder, **given: Any) -> RolloutPlan:
    return plan_rollout(fleet(*workers, **given), now=NOW)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("phase", [RolloutPhase.PENDING, RolloutPhase.STAGING])
def test_a_missing_directory_is_waited_for(strategy, phase):
    made = plan(absent(0), absent(1), strategy=strategy, phase=phase)

    assert made.step.awaits_source
    assert made.step.phase is RolloutPhase.PENDING
    assert made.step.problem is None
    assert made.step.failed == ()
    assert not made.halted
    assert "/weights/step_42" in made.step.note


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_missing_directory_is_read_again(strategy):
    rested = plan(absent(0, age_seconds=9), absent(1, age_seconds=9), strategy=strategy)
    due = plan(absent(0, age_seconds=11), absent(1, age_seconds=11), strategy=strategy)

    assert texts_of(rested.step.actions) == []
    assert "stage 42 on policy-0" in texts_of(due.step.actions)


@pytest.mark.parametrize(
    ("seconds", "limit", "reported"),
    [(HOUR, HOUR, False), (HOUR + 1, HOUR, True), (HOUR + 1, 2 * HOUR, False), (11, 10, True)],
)
def test_a_missing_directory_is_reported_after_the_fleets_time_limit(seconds, limit, reported):
    timeouts = {"checkpointSeconds": limit}
    problem = plan(absent(0), seconds=seconds, timeouts=timeouts).step.problem

    assert (problem is not None) is reported
    if problem is not None:
        assert problem.reason is ConditionReason.SOURCE_NOT_FOUND
        assert "/weights/step_42" in problem.message
        assert limit in figures(problem.message)


def conditions(
    observed: FleetObserved,
) -> tuple[dict[ConditionType, Any], dict[ConditionType, Any]]:
    """Those of the WeightVersion and of the fleet, by type."""
    revision = revisions.revision_of(observed)
    current = tuple(replace(w, pod=replace(w.pod, revision=revision)) for w in observed.workers)
    made = decide(replace(observed, workers=current), default_image="i", now=NOW)
    (weights,) = made.weights.values()
    return tuple(
        {t: c for t in ConditionType if (c := condition_of(status.conditions, t)) is not None}
        for status in (weights, made.fleet)
    )


@pytest.mark.parametrize(
    ("seconds", "kinds"),
    [(10, [ConditionType.READY, ConditionType.PROGRESSING]), (HOUR + 1, [ConditionType.STALLED])],
)
def test_what_workers_see_there_is_in_both_objects_and_does_not_change_with_each_answer(
    seconds, kinds
):
    other = absent(1, message="the source does not exist; /weights has step_41")
    before = conditions(fleet(absent(0), other, seconds=seconds))
    later = conditions(fleet(absent(0, age_seconds=4), absent(1), seconds=seconds))

    assert before == later
    for found in before:
        for kind in kinds:
            assert SEEN in found[kind].message


def test_after_the_limit_both_are_stalled():
    for found in conditions(fleet(absent(0), absent(1), seconds=2 * HOUR)):
        assert found[ConditionType.STALLED].reason is ConditionReason.SOURCE_NOT_FOUND
        assert found[ConditionType.PROGRESSING].status == "False"


def test_once_a_worker_found_it_the_staging_deadline_starts():
    """A network file system shows it to one node before another."""
    found = make_worker(0).serving("41").staged("42")
    soon = plan(found, absent(1), phase=RolloutPhase.STAGING)
    late = plan(found, absent(1), phase=RolloutPhase.STAGING, seconds=1000)

    assert not soon.step.awaits_source
    assert (soon.step.phase, soon.step.problem) == (RolloutPhase.STAGING, None)
    assert late.halted
    assert "policy-1" in present(late.step.problem).message


def test_a_directory_deleted_after_workers_held_it_is_an_error():
    made = plan(absent(0), absent(1), pinned=True)

    assert not made.step.awaits_source
    assert present(made.step.problem).reason is ConditionReason.SOURCE_NOT_FOUND


def test_a_deleted_applied_version_is_an_error_of_joining_workers():
    """Trainers delete old checkpoints; a worker that joins cannot get this one any more."""
    joining_worker = make_worker(1).joining("base").refused("41", Reason.SOURCE_ABSENT)
    observed = make_fleet(
        make_worker(0).serving("41"),
        joining_worker,
        wants="41",
        status=FleetStatus.model_validate({"applied": APPLIED}),
    )
    problem = present(plan_rollout(observed, now=NOW).step.problem)

    assert problem.reason is ConditionReason.SOURCE_NOT_FOUND


def test_a_missing_file_in_an_existing_checkpoint_is_an_error():
    refused = [
        make_worker(n).serving("41").refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2)
    ]
    made = plan(*refused)

    assert not made.step.awaits_source
    assert present(made.step.problem).reason is ConditionReason.SOURCE_NOT_FOUND


def test_a_worker_without_an_attempt_tries_before_the_model_serves():
    told_of = make_worker(0).joining("base").refused("42", Reason.SOURCE_ABSENT)
    observed = make_fleet(told_of, make_worker(1).joining("base"), wants="42")
    made = plan_rollout(observed, now=NOW)

    assert texts_of(made.step.actions) == ["stage 42 on policy-1"]
