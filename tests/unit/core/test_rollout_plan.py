"""The weights that a fleet should serve, and the effects of abandoning a version."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.builders import (
    NOW,
    fleet_at,
    make_fleet,
    make_transition,
    make_weights,
    make_worker,
    texts_of,
)

from fleet_operator.core.decision import decide
from fleet_operator.core.observed import Watched
from fleet_operator.core.rollout_plan import RolloutPlan, plan_rollout
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

APPLIED = fleet_at("41")


def plan(*workers, status: WeightsStatus, **rollout) -> RolloutPlan:
    seconds = (NOW - status.started_at).total_seconds() if status.started_at else 0
    watched = Watched(phase_seconds=seconds, attempt_seconds=seconds, saw_it_begin=True)
    weights = make_weights("42", status=status, watched=watched)
    fleet = make_fleet(*workers, wants=weights, status=APPLIED, rollout=rollout)
    return plan_rollout(fleet, now=NOW)


def since(seconds: float, phase: RolloutPhase) -> WeightsStatus:
    began = NOW - timedelta(seconds=seconds)
    return WeightsStatus(
        desired_version="42",
        observed_generation=1,
        phase=phase,
        started_at=began,
        phase_started_at=began,
    )


def test_a_rollback_starts_when_the_version_is_abandoned_and_no_worker_is_late_for_it():
    """Otherwise a worker that has to go back would be cut off at once, with its requests."""
    ahead = make_worker(0).serving("42x")
    late = make_worker(1).serving("41").silent()
    made = plan(ahead, late, status=since(901, RolloutPhase.STAGING))

    assert made.halted
    assert made.applied.version == "41"
    assert "stage 41 on policy-0" in texts_of(made.step.actions)
    assert "fence on policy-0" not in texts_of(made.step.actions)


def test_the_problem_is_kept_during_the_rollback():
    late = make_worker(1).serving("41").silent()
    made = plan(make_worker(0).serving("41"), late, status=since(901, RolloutPhase.STAGING))

    assert made.step.goal.version == "41"
    assert made.step.problem is not None
    assert made.step.problem.halt
    assert made.step.failed == ("policy-0", "policy-1")


def test_the_reason_is_kept_when_a_joining_worker_has_another_problem():
    refused = Condition(
        type=ConditionType.STALLED,
        status="True",
        reason=ConditionReason.CANARY_REFUSED,
        message="canary policy-0: logprob drift 9.000",
        observed_generation=1,
        last_transition_time=NOW,
    )
    halted = since(10, RolloutPhase.HALTED).model_copy(update={"conditions": (refused,)})
    weights = make_weights("42", status=halted)
    joining_worker = make_worker(1).joining("base").refused("41", Reason.CHECKPOINT_TRUNCATED)
    fleet = make_fleet(make_worker(0).serving("41"), joining_worker, wants=weights, status=APPLIED)

    made = decide(fleet, default_image="image", now=NOW)
    of_version = condition_of(made.weights[weights.uid].conditions, ConditionType.STALLED)
    of_fleet = condition_of(made.fleet.conditions, ConditionType.STALLED)

    assert of_version is not None
    assert of_version.reason is ConditionReason.CANARY_REFUSED
    assert of_fleet is not None
    assert of_fleet.reason is ConditionReason.CHECKPOINT_TRUNCATED


def test_a_fleet_without_a_weightversion_serves_the_model():
    made = plan_rollout(make_fleet(make_worker(0).serving("base")), now=NOW)

    assert (made.desired.version, made.applied.version, made.serving) == ("base",) * 3


def test_the_version_that_the_members_agree_on_is_reported():
    applied = since(10, RolloutPhase.APPLIED)

    assert plan(make_worker(0).serving("42"), status=applied).serving == "42"
    mixed = [make_worker(0).serving("42"), make_worker(1).serving("41")]
    assert plan(*mixed, status=applied).serving is None


@pytest.mark.parametrize("moves", [None, make_transition()], ids=["at rest", "on its way"])
def test_no_worker_opens_at_an_applied_version_that_no_stored_status_names(moves):
    """The leader has found that the fleet serves it, and no write of that has been accepted."""
    computed = fleet_at("42", transition=moves)
    joins = make_fleet(make_worker(0).joining("42"), wants="42", status=computed)

    waits = plan_rollout(replace(joins, stored=APPLIED), now=NOW)
    assert texts_of(waits.step.actions) == []
    assert waits.waits_for_pin
    assert texts_of(plan_rollout(joins, now=NOW).step.actions) == ["admit 42 on policy-0"]


@pytest.mark.parametrize("strategy", ["Synchronized", "Canary"])
@pytest.mark.parametrize(
    ("wants", "serves", "back"),
    [
        pytest.param("42", "41", True, id="tried again after a rollback"),
        pytest.param("43", "41", False, id="superseded before a pause"),
        pytest.param("43", "42", False, id="all others have resumed"),
    ],
)
def test_a_silent_worker_holds_up_no_version_that_the_others_can_take(
    strategy, wants, serves, back
):
    """The record of the last rollout stays as long as it is silent."""
    status = fleet_at(serves, transition=make_transition(back=back))
    others = [make_worker(n).serving(serves) for n in (0, 1)]
    silent = make_worker(2).serving(serves).silent(400)
    canary = {"prompts": ["a prompt"]}
    fleet = make_fleet(
        *(*others, silent),
        wants=wants,
        status=status,
        rollout={"strategy": strategy, "canary": canary},
    )
    made = plan_rollout(fleet, now=NOW)

    assert made.step.goal.version == wants
    assert made.step.actions
