"""Workers with a closed latch: they load the version of the fleet, and open when no rollout forbids it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_view,
    make_worker,
    target,
    texts_of,
)
from tests.support.present import present

from fleet_operator.core.decision import Decision
from fleet_operator.core.decision import decide as decide_all
from fleet_operator.core.joining import Admission, JoinStep, join
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource


def joining_worker(n: int = 0, version: str | None = "base") -> WorkerBuilder:
    return make_worker(n).joining(version)


def decide(
    *workers: WorkerBuilder,
    version: str = "42",
    fallback: str = "41",
    coming: str | None = None,
    open_now: bool = True,
    first: bool = False,
    mixed: bool = False,
    **rollout,
) -> JoinStep:
    view = make_view(*workers, **rollout)
    admission = Admission(
        goal=target(version),
        fallback=target(fallback),
        open_now=open_now,
        rollout_goal=target(coming) if coming else None,
        no_members=first,
        allows_mixing=mixed,
        may_fail=view.may_fail,
    )
    return join(view.joining, admission, view.settings)


def done(*workers: WorkerBuilder, **given) -> list[str]:
    return texts_of(decide(*workers, **given).actions)


def test_a_joining_worker_stages_loads_and_is_admitted():
    assert done(joining_worker()) == ["stage 42 on policy-0"]
    assert done(joining_worker().staged("42")) == ["load 42 on policy-0"]
    assert done(joining_worker(version="42")) == ["admit 42 on policy-0"]


def test_a_worker_that_stages_another_version_gets_the_right_one():
    assert done(joining_worker().doing("stage", "41")) == ["stage 42 on policy-0"]


def test_a_starting_worker_gets_no_call():
    assert done(make_worker(0).starting(), make_worker(1).broken()) == []


def test_no_worker_is_admitted_where_that_would_mix_versions():
    assert done(joining_worker(version="42"), open_now=False) == []


def test_a_worker_with_unfinished_requests_gets_no_call():
    assert done(joining_worker().staged("42").doing("fence")) == []
    assert done(joining_worker(version="42").doing("fence")) == []


class TestVersionThatCannotBeLoaded:
    REFUSED = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_the_staged_fallback_is_loaded_before_the_desired_version_is_retried(self):
        refused = joining_worker().refused("42", Reason.DIGEST_MISMATCH, age_seconds=4)

        assert done(refused.staged("41")) == ["load 41 on policy-0"]

    def test_without_mixing_a_worker_on_the_fallback_waits(self):
        waiting = joining_worker(version="41").refused("42", Reason.SOURCE_NOT_FOUND)

        assert done(waiting) == []
        assert done(waiting, mixed=True) == ["admit 41 on policy-0"]

    def test_a_worker_in_recovery_is_admitted_on_its_version(self):
        broke = joining_worker(version="41").failed_to_load("42", age_seconds=99)

        assert done(broke, mixed=True) == ["admit 41 on policy-0"]
        assert done(broke) == ["stage 42 on policy-0"]

    def test_if_the_fallback_fails_both_wait(self):
        refused = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=14)
        made = decide(refused.refused("41", Reason.SOURCE_NOT_FOUND, age_seconds=4))

        assert made.actions == ()
        assert made.requeue_after_seconds == 6

    def test_the_desired_version_is_retried_before_the_applied_one(self):
        assert done(joining_worker().refused("41", Reason.SOURCE_NOT_FOUND, age_seconds=11)) == [
            "stage 42 on policy-0"
        ]

    def test_the_stage_of_the_fallback_ends_before_the_desired_version_is_retried(self):
        refused = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=35)

        assert done(refused.doing("stage", "41")) == []
        assert done(refused) == ["stage 42 on policy-0"]

    def test_the_staged_fallback_is_loaded_however_long_its_stage_took(self):
        refused = joining_worker().refused("42", Reason.DIGEST_MISMATCH, age_seconds=35)
        broke = refused.failed_to_load("41", age_seconds=60)
        just_broke = refused.failed_to_load("41", age_seconds=12)

        assert done(refused.staged("41")) == ["load 41 on policy-0"]
        assert done(broke.staged("41")) == ["load 41 on policy-0"]
        assert done(just_broke.staged("41")) == ["stage 42 on policy-0"], "its turn was before"

    @pytest.mark.parametrize(
        "worker",
        [joining_worker(), make_worker(0).broken(), joining_worker().doing("stage", "42")],
        ids=["waits", "recovers", "tries again"],
    )
    def test_a_load_that_breaks_repeatedly_stays_one_problem(self, worker):
        """Also without another version, and while no worker serves. Each change of the reason is an Event."""
        made = decide(worker.failed_to_load("42"), fallback="42", first=True)

        assert present(made.problem).reason is ConditionReason.WORKERS_FAILING

    @pytest.mark.parametrize(
        "worker",
        [
            joining_worker(),
            make_worker(0).broken(),
            make_worker(0).loading("base", "42").reporting(admitted=False),
        ],
        ids=["waits", "recovers", "tries again"],
    )
    def test_so_does_one_whose_other_version_cannot_be_loaded_either(self, worker):
        both = worker.failed_to_load("42", age_seconds=9).refused("41", Reason.DIGEST_MISMATCH)
        made = decide(both, first=True)

        assert present(made.problem).reason is ConditionReason.FAILURE_BUDGET_EXCEEDED

    @pytest.mark.parametrize("path", ["/weights/step_42", "/copies/step_42"])
    @pytest.mark.parametrize(
        ("worker", "reason"),
        [
            (joining_worker().failed_to_load("42"), ConditionReason.WORKERS_FAILING),
            (make_worker(0).broken().failed_to_load("42"), ConditionReason.WORKERS_FAILING),
            (
                joining_worker().refused("42", Reason.DIGEST_MISMATCH),
                ConditionReason.VERSION_REUSED,
            ),
        ],
        ids=["waits", "recovers", "finds other files"],
    )
    def test_the_applied_weights_with_their_pin_are_no_other_version(self, worker, reason, path):
        """Also if the trainer names them in another place."""
        view, fallback = make_view(worker), replace(target("42"), digest="sha256:42")
        goal = replace(fallback, pinned=True, source=WeightSource(path=path))
        admission = Admission(goal=goal, fallback=fallback, open_now=True, no_members=True)

        made = join(view.joining, admission, view.settings)

        assert present(made.problem).reason is reason

    def test_a_refused_version_is_retried_later(self):
        refused = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=4)

        assert decide(refused, fallback="42").requeue_after_seconds == 6
        later = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=11)
        assert done(later, fallback="42") == ["stage 42 on policy-0"]


class TestFirstWorkers:
    REFUSED = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_the_first_workers_are_admitted_on_the_last_good_version(self):
        at_fallback = joining_worker(version="41").refused("42", Reason.SOURCE_NOT_FOUND)
        made = decide(at_fallback, first=True)

        assert texts_of(made.actions) == ["admit 41 on policy-0"]
        assert not present(made.problem).halt

    def test_the_first_workers_follow_a_worker_that_has_the_version(self):
        made = decide(self.REFUSED, joining_worker(1, "42"), first=True)

        assert made.problem is None
        assert "admit 42 on policy-1" in texts_of(made.actions)

    def test_not_all_first_workers_may_fail(self):
        assert decide(self.REFUSED, first=True, maxFailures=1).problem is not None

    def test_max_failures_applies(self):
        assert decide(self.REFUSED, joining_worker(1), first=True, maxFailures=1).problem is None


class TestWorkerThatCannotJoin:
    """A joining worker that cannot load any admissible version is reported in Stalled."""

    REFUSED = joining_worker().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_a_worker_that_cannot_join_is_reported_with_the_reason(self):
        problem = present(decide(self.REFUSED, joining_worker(1), fallback="42").problem)

        assert problem.reason is ConditionReason.SOURCE_NOT_FOUND
        assert not problem.halt
        assert problem.message.startswith(
            "1 worker cannot join at version 42 (/weights/step_42). SourceNotFound: injected "
            "(policy-0). The operator tries again after 10 to 300 s"
        )

    def test_a_version_that_breaks_an_engine_is_reported_in_any_case(self):
        problem = decide(
            joining_worker().failed_to_load("42", age_seconds=99), fallback="41"
        ).problem

        assert problem is not None
        assert problem.message.startswith("1 worker cannot join at version 42")

    @pytest.mark.parametrize("mixed", [False, True])
    def test_a_worker_with_the_fallback_is_reported_where_it_may_not_join_with_it(self, *, mixed):
        broke = joining_worker(version="41").failed_to_load("42", age_seconds=5)
        problem = decide(broke, fallback="41", mixed=mixed).problem

        assert (problem is None) is mixed

    def test_a_worker_that_cannot_join_is_reported_once_the_other_version_failed(self):
        refused = joining_worker().refused("41", Reason.SOURCE_NOT_FOUND)
        problem = present(decide(refused, fallback="41").problem)

        assert problem.message.startswith("1 worker cannot join at version 41")

    def test_a_joined_worker_is_not_reported(self):
        waiting = joining_worker(version="42").refused("42", Reason.SOURCE_NOT_FOUND)

        assert decide(waiting, fallback="42", open_now=False).problem is None


class TestWorkerThatTakesTooLong:
    """A joining worker that reads or loads for longer than that may take is reported, and nothing else changes."""

    @staticmethod
    def decided(*workers: WorkerBuilder, wants: str = "42") -> Decision:
        rollout = {"timeouts": {"stageSeconds": 300, "loadSeconds": 100}}
        fleet = make_fleet(*workers, wants=wants, rollout=rollout)
        return decide_all(fleet, default_image="rlfleet/worker:1", now=NOW)

    @staticmethod
    def stalled(decision: Decision) -> tuple[Condition | None, Condition | None]:
        """`Stalled` of the fleet, and of the WeightVersion."""
        (weights,) = decision.weights.values()
        fleet = decision.fleet
        return (
            condition_of(fleet.conditions, ConditionType.STALLED),
            condition_of(weights.conditions, ConditionType.STALLED),
        )

    @pytest.mark.parametrize(("kind", "seconds"), [("stage", 300), ("load", 100)])
    def test_it_needs_attention_after_the_time_of_its_work_and_not_before(self, kind, seconds):
        serving, joins = make_worker(0).serving("42"), joining_worker(1).doing(kind, "42")
        in_time = self.decided(serving, joins.working_for(seconds))
        late = self.decided(serving, joins.working_for(seconds + 1))

        assert self.stalled(in_time) == (None, None)
        of_fleet, of_weights = self.stalled(late)
        assert present(of_fleet).reason == ConditionReason.DEADLINE_EXCEEDED
        assert f"policy-1 ({kind} 42)" in present(of_fleet).message
        assert of_weights is None, "its rollout ends without this worker"
        assert present(condition_of(late.fleet.conditions, ConditionType.READY)).status == "False"
        assert in_time.worker_calls == late.worker_calls
        assert in_time.pod_actions == late.pod_actions
        assert in_time.rollout == late.rollout

    @pytest.mark.parametrize("version", ["41", "42"])
    def test_the_weightversion_is_stalled_by_the_first_workers_that_work_on_its_version(
        self, version
    ):
        late = [joining_worker(n).doing("stage", version).working_for(301) for n in range(5)]
        of_fleet, of_weights = self.stalled(self.decided(*late))

        assert present(of_fleet).message.startswith("5 workers")
        assert (of_weights is not None) == (version == "42")

    def test_the_message_holds_no_running_clock(self):
        late = joining_worker(1).doing("stage", "42")
        found = [
            self.stalled(self.decided(make_worker(0).serving("42"), late.working_for(seconds)))
            for seconds in (301, 999)
        ]

        assert found[0] == found[1]
