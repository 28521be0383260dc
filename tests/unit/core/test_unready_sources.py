"""A source that is still being written is waited for; only the stage deadline makes it a problem."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker, texts_of

from fleet_operator.core.observed import Watched
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_worker.protocol import Reason
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

UNREADY = Reason.SOURCE_NOT_READY


def _staging(since_seconds: float) -> WeightsStatus:
    begun = NOW - timedelta(seconds=since_seconds)
    return WeightsStatus(
        observed_generation=1,
        desired_version="42",
        phase=RolloutPhase.STAGING,
        started_at=begun,
        phase_started_at=begun,
    )


def _fleet(
    *,
    age_seconds: float,
    since_seconds: float = 5,
    strategy: str = "Synchronized",
    reason: Reason = UNREADY,
):
    watched = Watched(phase_seconds=since_seconds, attempt_seconds=since_seconds)
    weights = make_weights("42", status=_staging(since_seconds), watched=watched)
    applied = {"version": "41", "source": {"path": "/weights/step_41"}}
    return make_fleet(
        *(
            make_worker(n).serving("41").refused("42", reason, age_seconds=age_seconds)
            for n in range(2)
        ),
        wants=weights,
        status=FleetStatus.model_validate({"applied": applied}),
        rollout={"strategy": strategy},
    )


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
def test_a_source_that_is_being_written_is_reported_without_a_problem(strategy):
    step = plan_rollout(_fleet(age_seconds=0.5, strategy=strategy), now=NOW).step

    assert step.problem is None
    assert step.failed == ()
    assert "policy-0, policy-1 wait (SourceNotReady): injected" in step.note
    assert texts_of(step.actions) == []


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
def test_an_unready_source_is_read_again_after_a_second(strategy):
    step = plan_rollout(_fleet(age_seconds=1.5, strategy=strategy), now=NOW).step

    assert texts_of(step.actions) == ["stage 42 on policy-0", "stage 42 on policy-1"]


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
def test_a_new_attempt_does_not_wait_for_failures_of_an_earlier_one(strategy):
    begun = _fleet(
        age_seconds=5, since_seconds=2, strategy=strategy, reason=Reason.SOURCE_NOT_FOUND
    )
    step = plan_rollout(begun, now=NOW).step

    assert texts_of(step.actions) == ["stage 42 on policy-0", "stage 42 on policy-1"]


def test_a_source_that_is_never_complete_ends_with_the_staging_deadline():
    step = plan_rollout(_fleet(age_seconds=0.5, since_seconds=1000), now=NOW).step

    assert step.problem is not None
    assert step.problem.reason is ConditionReason.DEADLINE_EXCEEDED
    assert "SourceNotReady" in step.problem.message
