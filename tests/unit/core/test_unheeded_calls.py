"""Calls that workers do not follow: which of them are reported, where, and what follows from them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    applied_status,
    call_for,
    make_fleet,
    make_view,
    make_weights,
    make_worker,
    texts_of,
)

from fleet_operator.api.fleet import Rollout
from fleet_operator.core.actions import Fence
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.lagging import lagging_workers
from fleet_operator.core.lora import as_seen_by_lora
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.problems import Problem
from fleet_operator.core.strategies.gradual import step_towards
from fleet_operator.core.unheeded_calls import LATELY_SECONDS, problems_of_calls
from fleet_operator.core.work import Outcome
from fleet_operator.core.worker_calls import drain_out_of_service, take_out_of_service
from fleet_operator.core.worker_failures import RETRY_SECONDS, failed_lately, failure_of
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

IMAGE = "rlfleet/worker:1"
LONG_AGO = LATELY_SECONDS + 1


def problems(*workers: WorkerBuilder, planned: str = "") -> tuple[Problem, ...]:
    calls = [call_for(planned, workers[0].pod_view().uid)] if planned else []
    return problems_of_calls(make_fleet(*workers, wants="2"), calls)


class TestReports:
    def test_a_call_that_lasts_without_an_effect_is_a_problem_that_names_it(self):
        (found,) = problems(make_worker(3).serving("1").ignoring("pause", "its phase is serving"))

        assert found.reason is ConditionReason.CALL_WITHOUT_EFFECT
        assert "policy-3 answers pause" in found.message
        assert "its phase is serving" in found.message

    def test_a_passing_trouble_is_not_reported(self):
        assert not problems(make_worker().serving("1").ignoring("pause", lasts=False))

    @pytest.mark.parametrize("outcome", Outcome)
    def test_every_outcome_is_one(self, outcome):
        (found,) = problems(make_worker().serving("1").ignoring("admit 1", outcome=outcome))

        assert "policy-0 answers admit 1" in found.message

    @pytest.mark.parametrize("kind", ["stage", "load", "apply"])
    def test_ignored_calls_to_take_weights_are_failures_of_the_rollout(self, kind):
        """They are reported there, and not twice."""
        ignored = make_worker().serving("1").ignoring(f"{kind} 2")
        refused = make_worker().serving("1").ignoring(f"{kind} 2", outcome=Outcome.REFUSED)

        assert not problems(ignored)
        assert problems(refused)

    def test_those_to_take_weights_that_no_rollout_requests_are_reported_here(self):
        """A barrier ends with the weights that some workers have loaded, whatever is desired since."""
        (of_base,) = problems(make_worker().serving("1").ignoring("load 3"))
        (of_sql,) = problems(make_worker().serving("1").ignoring("stage-adapter sql 2"))

        assert "policy-0 answers load 3" in of_base.message
        assert of_sql.concerns("sql")

    def test_a_call_that_is_not_needed_any_more_is_not_reported(self):
        past = make_worker().serving("1").ignoring("pause", seconds_ago=LONG_AGO)

        assert not problems(past)
        assert not problems(past, planned="admit 1")
        assert problems(past, planned="pause")

    def test_it_is_needed_while_one_is_in_flight_or_the_worker_is_silent(self):
        past = make_worker().serving("1").ignoring("pause", seconds_ago=LONG_AGO)

        assert problems(past.asked_to("pause"))
        assert problems(past.silent(5))
        assert not problems(past.silent(5).going())

    def test_those_about_an_adapter_are_a_problem_of_its_own(self):
        worker = make_worker().serving("1").ignoring("pause").ignoring("remove-adapter sql")
        of_base, of_sql = problems(worker)

        assert (of_base.concerns(""), of_base.concerns("sql")) == (True, False)
        assert (of_sql.concerns(""), of_sql.concerns("sql")) == (False, True)

    def test_many_workers_make_a_short_message(self):
        (found,) = problems(*(make_worker(n).serving("1").ignoring("pause") for n in range(500)))

        assert "497 more" in found.message
        assert len(found.message) < 500

    def test_the_message_holds_no_running_clock(self):
        def of(seconds: float) -> tuple[Problem, ...]:
            return problems(make_worker().serving("1").ignoring("pause", seconds_ago=seconds))

        assert of(1) == of(9.5)


def decision(*workers: WorkerBuilder) -> Decision:
    """In a rollout of version 2 that has begun before."""
    before = NOW - timedelta(seconds=LONG_AGO)
    staging = applied_status(
        "1",
        desired_version="2",
        phase=RolloutPhase.STAGING,
        started_at=before,
        phase_started_at=before,
    )
    fleet = make_fleet(*workers, wants=make_weights("2", status=staging))
    return decide(fleet, default_image=IMAGE, now=NOW)


def stalled(made: Decision) -> tuple[Condition | None, Condition | None]:
    """Of the fleet, and of its WeightVersion."""
    conditions = (made.fleet.conditions, made.weights["wv-1"].conditions)
    of_fleet, of_weights = (condition_of(c, ConditionType.STALLED) for c in conditions)
    return of_fleet, of_weights


class TestInDecisions:
    def test_the_fleet_and_its_weights_are_stalled(self):
        made = decision(make_worker().serving("1").staged("2").ignoring("pause"))

        for found in stalled(made):
            assert found is not None
            assert found.status == "True"
            assert found.reason is ConditionReason.CALL_WITHOUT_EFFECT
            assert "policy-0" in found.message

    def test_ignored_weights_count_like_refused_ones(self):
        made = decision(make_worker().serving("1").ignoring("stage 2", "it holds nothing"))
        of_fleet, of_weights = stalled(made)

        for found in (of_fleet, of_weights):
            assert found is not None
            assert found.status == "True"
            assert found.reason is ConditionReason.CALL_WITHOUT_EFFECT
        assert "it holds nothing" in of_weights.message

    def test_a_worker_that_ignored_weights_is_called_again_like_one_that_refused_them(self):
        ignored = make_worker().serving("1").ignoring("stage 2", seconds_ago=1).view()
        goal = make_view(wants="2").desired

        found = failure_of(ignored, goal)
        assert found is not None
        assert found.reason == "CallWithoutEffect"
        assert failed_lately(ignored, goal)
        later = make_worker().serving("1").ignoring("stage 2", seconds_ago=RETRY_SECONDS).view()
        assert not failed_lately(later, goal)
        assert failure_of(ignored, make_view(wants="3").desired) is None

    def test_a_worker_that_ignored_a_swap_gets_it_again_though_no_worker_may_fail(self):
        """Else the report would end and begin again each minute, and a repaired worker would wait as long."""

        def calls(seconds_ago: float) -> list[str]:
            ignores = make_worker(1).serving("1").staged("2")
            ignores = ignores.ignoring("apply 2", seconds_ago=seconds_ago)
            view = make_view(make_worker(0).serving("2"), ignores, wants="2")
            return texts_of(step_towards(view, at_once=None).actions)

        assert calls(1) == []
        assert calls(RETRY_SECONDS) == ["apply 2 on policy-1"]

    def test_a_refusal_that_is_newer_gives_the_reason(self):
        both = make_worker().serving("1").refused("2", Reason.CHECKPOINT_TRUNCATED, age_seconds=1)
        worker = both.ignoring("stage 2", seconds_ago=5).view()

        found = failure_of(worker, make_view(wants="2").desired)
        assert found is not None
        assert found.reason is Reason.CHECKPOINT_TRUNCATED

    def test_it_is_listed_among_the_lagging_workers(self):
        fleet = make_fleet(make_worker().serving("1").ignoring("load 2", "it has 1"), wants="2")
        (laggard,) = lagging_workers(fleet, make_view(wants="2").desired)

        assert (laggard.pod, laggard.reason) == ("policy-0", "CallWithoutEffect")
        assert re.search("version 2: .*it has 1", laggard.message)

    def test_a_worker_that_goes_back_is_listed_with_the_version_that_it_goes_to(self):
        fleet = make_fleet(make_worker().joining("2"), wants="2")
        goals = make_view(wants="2")
        (laggard,) = lagging_workers(fleet, goals.desired, goal=goals.applied)

        assert (laggard.reason, laggard.message) == ("Joining", "being updated to version 41")

    def test_an_adapters_version_is_not_one_of_the_base(self):
        """Both may have the same number."""
        worker = make_worker().serving("2").ignoring("stage-adapter sql 3")
        fleet = make_fleet(worker, wants=[make_weights("3")])
        goal = make_view(wants="3").desired

        (of_base,) = fleet.workers
        (of_sql,) = as_seen_by_lora(fleet, "sql").workers
        (of_other,) = as_seen_by_lora(fleet, "other").workers
        assert failure_of(of_base, goal) is None
        assert failure_of(of_sql, goal) is not None
        assert failure_of(of_other, goal) is None


class TestIgnoredFences:
    """Only its pod can take such a worker out of service."""

    @pytest.mark.parametrize("outcome", [Outcome.NO_EFFECT, Outcome.REVERTED])
    def test_a_worker_that_ignores_a_fence_is_quarantined(self, outcome):
        worker = make_worker().serving("1").ignoring("fence", outcome=outcome, lasts=False).view()

        assert isinstance(take_out_of_service(worker, reason="a test"), Quarantine)
        assert isinstance(drain_out_of_service(worker, Rollout(), reason="a test"), Quarantine)

    def test_one_that_refuses_it_once_is_called_again(self):
        def taken_out(*, lasts: bool) -> Fence | Quarantine:
            worker = make_worker().serving("1")
            refusing = worker.ignoring("fence", outcome=Outcome.REFUSED, lasts=lasts)
            return take_out_of_service(refusing.view(), reason="a test")

        assert isinstance(taken_out(lasts=False), Fence)
        assert isinstance(taken_out(lasts=True), Quarantine)

    def test_other_ignored_calls_do_not_matter(self):
        worker = make_worker().serving("1").ignoring("pause").view()

        assert isinstance(take_out_of_service(worker, reason="a test"), Fence)
