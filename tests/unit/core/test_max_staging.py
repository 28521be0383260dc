"""`rollout.maxStaging`: no more workers read one checkpoint at once, and none keeps others waiting."""

from __future__ import annotations

from typing import Any

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
from fleet_operator.api.weights import RolloutOverrides, WeightsSpec
from fleet_operator.core.lora import as_seen_by_lora, plan_lora
from fleet_operator.core.permits import Situation, permitted
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.staging import max_staging, places_of
from fleet_operator.core.strategies import canary, external, synchronized
from fleet_operator.core.strategies.base import RolloutView, Step, Strategy
from fleet_operator.core.strategies.choice import in_flight, rolling
from fleet_worker.protocol import AdapterSlots, Operation, Reason
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

STAGE = RolloutPhase.STAGING


def within_places(strategy: Strategy) -> Strategy:
    """A strategy whose wishes have passed the permit of places."""

    def step(view: RolloutView) -> Step:
        taken = strategy(view)
        places = places_of(taken.actions, view.workers, view.max_staging)
        return permitted(taken, Situation(places=places))[0]

    return step


STRATEGIES = [within_places(s) for s in (synchronized.step, in_flight, rolling)]
SYNCHRONIZED, IN_FLIGHT, ROLLING = STRATEGIES
EVERY_STRATEGY = pytest.mark.parametrize(
    "step", STRATEGIES, ids=["Synchronized", "InFlight", "Rolling"]
)


def old(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41")


def staging(n: int) -> WorkerBuilder:
    return old(n).doing("stage", "42")


def reading_for(n: int, seconds: float, *, version: str = "42") -> WorkerBuilder:
    work = Operation.model_validate(
        {"kind": "stage", "version": version, "running_seconds": seconds}
    )
    return old(n).reporting(operation=work)


def asked(taken: Step) -> list[str]:
    return [w for w in texts_of(taken.actions) if w.startswith(("stage", "adapter"))]


def view(*workers: WorkerBuilder, most: int | str = 2, **given: Any) -> RolloutView:
    return make_view(*workers, maxStaging=most, **given)


@EVERY_STRATEGY
def test_at_most_max_staging_workers_stage_lowest_ordinals_first(step):
    assert asked(step(view(*map(old, range(4))))) == [
        "stage 42 on policy-0",
        "stage 42 on policy-1",
    ]


@EVERY_STRATEGY
def test_without_a_limit_all_workers_stage(step):
    assert len(asked(step(make_view(*map(old, range(40)))))) == 40


@EVERY_STRATEGY
@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(staging(0), id="a worker that reports a read without our call"),
        pytest.param(old(0).asked_to("stage 42"), id="a call in flight"),
        pytest.param(
            old(0).without_answer_to("stage 42").silent(5).ready(),
            id="a worker whose answer was lost",
        ),
        pytest.param(
            old(0).without_answer_to("stage 42").without_answer_to("resume 41").silent(5).ready(),
            id="a worker whose answers to this call and to a later one were lost",
        ),
        pytest.param(staging(0).silent(5).ready(), id="a silent worker"),
        pytest.param(staging(0).silent(5).unready(), id="also to the kubelet, a moment ago"),
    ],
)
def test_a_worker_that_reads_occupies_a_place(step, reader):
    assert asked(step(view(reader, old(1), old(2)))) in (
        ["stage 42 on policy-1"],
        ["stage 42 on policy-0", "stage 42 on policy-1"],  # the same call again is no other
    )


@EVERY_STRATEGY
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(old(0).staged("42"), id="it has the bytes"),
        pytest.param(old(0).refused("42", Reason.SOURCE_NOT_FOUND), id="it has refused them"),
        pytest.param(reading_for(0, 901), id="it takes longer than the timeout"),
        pytest.param(staging(0).silent(901).ready(), id="it has been silent for longer"),
        pytest.param(staging(0).silent(11).unready(), id="neither we nor the kubelet reach it"),
        pytest.param(staging(0).going(), id="its pod goes"),
        pytest.param(staging(0).quarantined(), id="it was taken out of service"),
        pytest.param(staging(0).not_running(), id="its container ended"),
        pytest.param(old(0).doing("stage", "41"), id="it reads something else"),
        pytest.param(
            old(0).without_answer_to("stage 42").silent(901).ready(),
            id="an answer was lost longer ago than the call may take",
        ),
    ],
)
def test_a_place_becomes_free(step, other):
    chosen = asked(step(view(other, old(1), old(2), old(3))))

    assert len([c for c in chosen if not c.endswith("policy-0")]) >= 1
    assert len(chosen) == 2


@EVERY_STRATEGY
def test_a_worker_that_fails_repeatedly_comes_after_the_others(step):
    failed = old(0).refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=60)

    assert asked(step(view(failed, old(1), old(2), most=1))) == ["stage 42 on policy-1"]
    others = (old(1).staged("42"), old(2).staged("42"))
    assert asked(step(view(failed, *others, most=1))) == ["stage 42 on policy-0"]


@EVERY_STRATEGY
def test_workers_that_read_an_overtaken_version_keep_their_places(step):
    chosen = asked(step(view(old(0), old(1), old(2).doing("stage", "41"), most=1)))

    assert chosen == ["stage 42 on policy-2"]


@EVERY_STRATEGY
def test_a_worker_that_will_be_deleted_comes_last(step):
    assert asked(step(view(old(0).draining_since(NOW), old(1), most=1))) == ["stage 42 on policy-1"]


def test_a_worker_that_has_just_looked_keeps_its_place_from_others_but_not_from_one_that_reads():
    """The leader that called the other one had not heard of it. The files may be there now, and both would read."""
    looked = old(0).refused("42", Reason.SOURCE_ABSENT, age_seconds=0.5)

    def may_look_again(other: WorkerBuilder) -> bool:
        call = call_for("stage 42", looked.pod_view().uid)
        places = places_of([call], [looked.view(), other.view()], 1)
        return places is not None and places.permit(call)

    assert may_look_again(old(1))
    assert not may_look_again(staging(1))


@EVERY_STRATEGY
def test_a_limited_number_of_workers_looks_for_a_missing_checkpoint_each_second(step):
    def looked(n: int, age_seconds: float) -> WorkerBuilder:
        return old(n).refused("42", Reason.SOURCE_NOT_READY, age_seconds=age_seconds)

    assert asked(step(view(looked(0, 0.5), looked(1, 0.5), old(2)))) == []
    assert asked(step(view(looked(0, 0.5), looked(1, 1.5), old(2)))) == ["stage 42 on policy-2"]


def test_a_percentage_is_of_the_replicas_and_at_least_one():
    assert max_staging(Rollout.model_validate({"maxStaging": "10%"}), 1000) == 100
    assert max_staging(Rollout.model_validate({"maxStaging": "10%"}), 5) == 1
    assert max_staging(Rollout.model_validate({"maxStaging": 7}), 5) == 7
    assert max_staging(Rollout(), 1000) is None


def test_a_weightversion_overrides_the_limit():
    fleet = Rollout.model_validate({"maxStaging": 7})

    assert RolloutOverrides.model_validate({"maxStaging": "100%"}).over(fleet).max_staging == "100%"
    assert RolloutOverrides().over(fleet).max_staging == 7


class TestJoiningWorkers:
    def test_members_come_first_and_joining_workers_count(self):
        joining_worker = make_worker(0).joining("base")

        assert asked(IN_FLIGHT(view(joining_worker, old(1), most=1))) == ["stage 42 on policy-1"]
        reading = joining_worker.doing("stage", "42")
        assert asked(IN_FLIGHT(view(reading, old(1), most=1))) == []

    def test_another_checkpoint_has_its_own_places(self):
        joining_worker = make_worker(0).joining("base")

        assert asked(SYNCHRONIZED(view(joining_worker, old(1), most=1))) == [
            "stage 41 on policy-0",
            "stage 42 on policy-1",
        ]

    @pytest.mark.parametrize("step", [IN_FLIGHT, ROLLING])
    def test_with_mixing_a_waiting_worker_serves_the_applied_version(self, step):
        joining_worker = make_worker(0).joining("41")

        assert "admit 41 on policy-0" in texts_of(
            step(view(joining_worker, old(1), most=1)).actions
        )
        free = step(view(joining_worker, old(1), most=2)).actions
        assert "stage 42 on policy-0" in texts_of(free)
        assert "admit 41 on policy-0" not in texts_of(free)

    def test_without_an_applied_version_it_waits(self):
        joining = [make_worker(n).joining("41") for n in range(2)]

        assert texts_of(IN_FLIGHT(view(*joining, most=1)).actions) == ["stage 42 on policy-0"]

    def test_joining_workers_of_an_external_fleet_are_limited(self):
        served = make_worker(9).serving("7").from_source("/weights/step_7")
        joining = [make_worker(n).joining("base") for n in range(3)]
        taken = within_places(external.step)(view(served, *joining, most=1, applied="7"))

        assert asked(taken) == ["stage 7 on policy-0"]

    def test_canaries_are_limited(self):
        known = [old(n).probed("41") for n in range(3)]
        step = within_places(canary.then(synchronized.step))
        fleet = view(*known, most=1, canary={"workers": 3})

        assert asked(step(fleet)) == ["stage 42 on policy-0"]


class TestDeadlines:
    """One timeout for each group of maxStaging; a worker that waits for its place is not late."""

    MINUTE = {"timeouts": {"stageSeconds": 60, "loadSeconds": 60}, "phase": STAGE}  # noqa: RUF012 - no test writes to it

    @EVERY_STRATEGY
    @pytest.mark.parametrize(("seconds", "late"), [(61, False), (119, False), (121, True)])
    def test_the_deadline_grows_with_the_number_of_groups(self, step, seconds, late):
        fleet = view(*map(old, range(4)), phase_seconds=seconds, **self.MINUTE)
        problem = step(fleet).problem

        assert (problem is not None) == late
        if problem is not None:
            assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
            assert problem.halt

    @EVERY_STRATEGY
    def test_groups_are_counted_over_all_workers(self, step):
        workers = [*(old(n).staged("42") for n in range(3)), old(3)]
        fleet = view(*workers, most=1, phase_seconds=239, **self.MINUTE)

        assert step(fleet).problem is None

    @EVERY_STRATEGY
    @pytest.mark.parametrize(
        "slow",
        [
            pytest.param(reading_for(0, 61), id="a read beyond the deadline of one worker"),
            pytest.param(make_worker(0).silent(61).ready(), id="it is silent for longer"),
        ],
    )
    def test_a_single_worker_beyond_its_deadline_is_late_at_once(self, step, slow):
        workers = [slow, *map(old, range(1, 4))]
        taken = step(view(*workers, phase_seconds=61, **self.MINUTE))

        assert taken.failed == ("policy-0",)
        assert taken.problem is not None
        assert taken.problem.halt

    @EVERY_STRATEGY
    def test_time_before_this_leader_makes_no_worker_late(self, step):
        workers = [reading_for(0, 61), *map(old, range(1, 4))]

        assert step(view(*workers, phase_seconds=59, **self.MINUTE)).problem is None

    def test_canaries_that_wait_for_a_place_are_not_late(self):
        step = within_places(canary.then(synchronized.step))
        known = [old(n).probed("41") for n in range(2)]
        given = self.MINUTE | {"phase": RolloutPhase.JUDGING, "canary": {"workers": 2}}
        limit = 60 + 3 * 60 + 60

        def late(seconds: float, most: int) -> bool:
            return step(view(*known, most=most, phase_seconds=seconds, **given)).problem is not None

        assert late(limit + 1, most=2)
        assert not late(limit + 1, most=1)
        assert late(limit + 61, most=1)

    def test_a_rolling_rollout_is_not_late_while_workers_wait(self):
        workers = [make_worker(0).serving("42"), *map(old, range(1, 4))]
        given = self.MINUTE | {"phase": RolloutPhase.LOADING, "maxUnavailable": 4}

        def slow(seconds: float) -> bool:
            taken = ROLLING(view(*workers, most=1, phase_seconds=seconds, **given))
            return taken.problem is not None

        assert not slow(299)
        assert slow(301)


class TestNotes:
    @EVERY_STRATEGY
    def test_waiting_workers_are_reported(self, step):
        assert "at most 2 read a checkpoint at once" in step(view(*map(old, range(3)))).told
        assert "at once" not in step(view(*map(old, range(2)))).told


class TestAdapters:
    SLOTS = AdapterSlots(total=3, used=0, max_rank=16)

    def plan(self, *workers: WorkerBuilder, **rollout: Any) -> list[str]:
        spec = WeightsSpec.model_validate(
            {
                "fleetRef": {"name": "policy"},
                "adapter": "sql",
                "version": "2",
                "source": {"path": "/weights/sql"},
            }
        )
        weights = make_weights("2", spec=spec, name="sql", uid="sql")
        able = [w.reporting(adapter_slots=self.SLOTS) for w in workers]
        fleet = make_fleet(*able, wants=(weights,), adapters={"max": 1}, rollout=rollout)
        return texts_of(plan_lora(as_seen_by_lora(fleet, "sql"), weights, now=NOW).step.actions)

    def test_adapters_are_limited_as_base_weights_are(self):
        assert len(self.plan(*map(old, range(4)))) == 4
        assert self.plan(*map(old, range(4)), maxStaging=2) == [
            "stage-adapter sql 2 on policy-0",
            "stage-adapter sql 2 on policy-1",
        ]

    @pytest.mark.parametrize(
        "reader",
        [old(0).asked_to("stage-adapter sql 2"), old(0).doing("stage-adapter", "2")],
        ids=["a call in flight", "one that reports it"],
    )
    def test_a_worker_that_reads_an_adapter_occupies_a_place(self, reader):
        assert self.plan(reader, old(1), old(2), maxStaging=1) == []


def test_workers_outside_the_rollout_count():
    going = staging(0).silent(5).unready()  # neither a member nor a joining worker now
    weights = make_weights("42", status=applied_status("41"))
    fleet = make_fleet(going, old(1), old(2), wants=weights, rollout={"maxStaging": 1})

    assert asked(plan_rollout(fleet, now=NOW).step) == []
