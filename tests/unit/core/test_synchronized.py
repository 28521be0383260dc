"""Synchronized, one decision at a time: stage all, pause all, load all, resume all."""

from __future__ import annotations

import pytest
from tests.support.builders import AWorker, make_view, make_worker, told

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.strategies.synchronized import step
from fleet_worker.protocol import Reason

STAGING, PAUSING = RolloutPhase.STAGING, RolloutPhase.PAUSING
LOADING, RESUMING = RolloutPhase.LOADING, RolloutPhase.RESUMING


def old(n: int) -> AWorker:
    return make_worker(n).serving("41")


def staged(n: int) -> AWorker:
    return old(n).staged("42")


def cut_off(n: int, *, seconds: float) -> AWorker:
    return make_worker(n).silent(seconds).ready()


def pausing(n: int) -> AWorker:
    return make_worker(n).pausing("41").staged("42")


def held(n: int) -> AWorker:
    return make_worker(n).paused("41").staged("42")


def loaded(n: int) -> AWorker:
    return make_worker(n).paused("42").loaded()


def new(n: int) -> AWorker:
    return make_worker(n).serving("42")


@pytest.mark.parametrize(
    ("workers", "phase", "done"),
    [
        pytest.param([old(0), old(1)], STAGING, ["stage 42 on policy-0", "stage 42 on policy-1"]),
        pytest.param([staged(0), old(1)], STAGING, ["stage 42 on policy-1"]),
        pytest.param([staged(0), old(1).doing("stage", "42")], STAGING, []),
        pytest.param([old(0).doing("stage", "41")], STAGING, ["stage 42 on policy-0"]),
        pytest.param([staged(0), old(1).silent()], STAGING, []),
        pytest.param([staged(0), staged(1)], PAUSING, ["pause on policy-0", "pause on policy-1"]),
        pytest.param([held(0), staged(1)], PAUSING, ["pause on policy-1"]),
        pytest.param([held(0), make_worker(1).pausing("41").staged("42")], PAUSING, ["pause on policy-1"]),
        pytest.param([held(0), staged(1).silent()], PAUSING, []),
        pytest.param([held(0), held(1)], LOADING, ["load 42 on policy-0", "load 42 on policy-1"]),
        pytest.param([loaded(0), held(1)], LOADING, ["load 42 on policy-1"]),
        pytest.param([loaded(0), make_worker(1).loading("41", "42")], LOADING, []),
        pytest.param([loaded(0), loaded(1)], RESUMING, ["resume 42 on policy-0", "resume 42 on policy-1"]),
        pytest.param([new(0), loaded(1)], RESUMING, ["resume 42 on policy-1"]),
        pytest.param([new(0), loaded(1).doing("resume", "42")], RESUMING, []),
        pytest.param([new(0), new(1)], RolloutPhase.APPLIED, []),
        pytest.param([], RolloutPhase.PENDING, []),
    ],
    ids=lambda value: "; ".join(value) if value and isinstance(value[0], str) else None,
)  # fmt: skip
def test_the_next_step(workers, phase, done):
    taken = step(make_view(*workers))

    assert (taken.phase, told(taken.actions)) == (phase, done)
    assert taken.problem is None


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([held(0), staged(1)], id="pausing"),
        pytest.param([held(0), held(1)], id="loading"),
        pytest.param([loaded(0), loaded(1)], id="resuming"),
        pytest.param([loaded(0), old(1)], id="staging what one of them needs to go on"),
    ],
)
def test_while_requests_are_held_the_fleet_is_left_alone_otherwise(workers):
    assert step(make_view(*workers)).disturbed


@pytest.mark.parametrize("workers", [[old(0)], [new(0)], []], ids=["staging", "applied", "nobody"])
def test_otherwise_it_is_not(workers):
    assert not step(make_view(*workers)).disturbed


class TestOvertaken:
    def test_before_any_load_all_go_on_at_once_on_the_old_version(self):
        taken = step(make_view(held(0), held(1), wants="43"))

        assert taken.phase is STAGING
        assert told(taken.actions) == [
            "resume 41 on policy-0",
            "resume 41 on policy-1",
            "stage 43 on policy-0",
            "stage 43 on policy-1",
        ]

    def test_after_some_load_the_shortest_way_out_is_forward(self):
        taken = step(make_view(loaded(0), held(1), wants="43"))

        assert taken.goal.version == "42"
        assert told(taken.actions) == ["load 42 on policy-1"]

    def test_where_somebody_has_lost_the_bytes_it_is_the_newest_version(self):
        workers = [loaded(0), make_worker(1).paused("41")]
        taken = step(make_view(*workers, wants="43"))

        assert taken.goal.version == "43"
        assert "resume 41 on policy-1" in told(taken.actions)
        assert "resume 42 on policy-0" not in told(taken.actions)

    def test_where_the_load_broke_somebody_it_is_not_gone_through_with(self):
        broke = make_worker(1).joining("41").failed_to_load("42")

        assert step(make_view(loaded(0), broke, wants="43")).goal.version == "43"

    def test_what_was_served_before_the_pause_is_no_way_forward(self):
        left_over = make_worker(0).paused("40")

        assert step(make_view(left_over, wants="43")).goal.version == "43"


class TestWithoutATimeOut:
    """The way back, or out of an overtaken rollout, has none: there the pauses are looked at."""

    LONG = 2 * (60 + 60 + 600)

    def back(self, *workers: AWorker):
        return told(step(make_view(*workers, halted=True, phase=RolloutPhase.HALTED)).actions)

    def test_one_that_does_not_load_is_left_behind_when_the_others_have_waited_long(self):
        waits, stays = make_worker(0).paused("41"), loaded(1).staged("41")

        assert "load 41 on policy-1" in self.back(waits.heard(self.LONG - 1), stays)
        assert "fence on policy-1" in self.back(waits.heard(self.LONG), stays)

    def test_so_is_one_that_does_not_pause(self):
        waits, stays = make_worker(0).paused("40").staged("41"), loaded(1).staged("41").silent()

        assert "Quarantine policy-1" not in self.back(waits.heard(self.LONG - 1), stays)
        assert "Quarantine policy-1" in self.back(waits.heard(self.LONG), stays)

    def test_so_is_one_that_holds_its_requests_and_cannot_get_the_bytes(self):
        stays = loaded(1)

        assert "fence on policy-1" not in self.back(old(0), stays.heard(self.LONG - 1))
        assert "fence on policy-1" in self.back(old(0), stays.heard(self.LONG))


class TestHeldBack:
    def test_a_suspended_rollout_begins_nothing(self):
        assert step(make_view(old(0), old(1), suspended=True)).actions == ()

    def test_what_holds_requests_is_brought_to_its_end(self):
        taken = step(make_view(held(0), held(1), suspended=True))

        assert told(taken.actions) == ["load 42 on policy-0", "load 42 on policy-1"]

    def test_a_version_that_was_given_up_takes_those_back_that_have_loaded(self):
        back = make_worker(0).paused("42").staged("41")
        taken = step(make_view(back, held(1), halted=True))

        assert taken.goal.version == "41"
        assert told(taken.actions) == ["load 41 on policy-0"]


class TestFailures:
    def test_a_refusal_is_said_and_touches_nothing(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)
        taken = step(make_view(refused, staged(1)))

        assert taken.actions == ()
        assert taken.failed == ("policy-0",)
        assert taken.problem is not None
        assert taken.problem.reason is ConditionReason.CHECKPOINT_TRUNCATED
        assert not taken.problem.halt

    def test_it_is_asked_about_again_after_a_while(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED, age_seconds=11)

        assert told(step(make_view(refused)).actions) == ["stage 42 on policy-0"]

    def test_one_that_may_fail_is_left_behind_when_the_others_are_ready(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)

        assert step(make_view(refused, old(1), maxFailures=1)).problem is None
        assert step(make_view(refused, old(1), maxFailures="50%")).problem is None
        assert step(make_view(refused, old(1), maxFailures="49%")).problem is not None
        taken = step(make_view(refused, staged(1), maxFailures=1))
        assert told(taken.actions) == ["fence on policy-0"]
        (fence,) = taken.actions
        assert fence.drain_timeout_seconds == 60, "its requests may finish first"

    def test_not_all_of_them_may_fail(self):
        both = [old(n).refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2)]
        taken = step(make_view(*both, maxFailures=9))

        assert taken.actions == ()
        assert taken.problem is not None
        assert "2 workers cannot take version 42" in taken.problem.message
        assert "may fail" not in taken.problem.message

    def test_one_that_was_left_behind_is_not_let_in_again_at_the_old_version(self):
        left = make_worker(0).joining("41").refused("42", Reason.CHECKPOINT_TRUNCATED)

        assert told(step(make_view(left, staged(1), maxFailures=1)).actions) == [
            "pause on policy-1"
        ]
        assert "admit 41 on policy-0" in told(step(make_view(left, old(1), maxFailures=1)).actions)

    @pytest.mark.parametrize(
        ("phase", "workers", "limit"),
        [
            pytest.param(STAGING, [old(0), staged(1)], 900, id="staging"),
            pytest.param(PAUSING, [pausing(0), held(1)], 60, id="pausing"),
            pytest.param(PAUSING, [staged(0).silent(), held(1)], 60, id="pausing, silent"),
            pytest.param(PAUSING, [staged(0), held(1)], 120, id="pausing, our calls were lost"),
            pytest.param(LOADING, [held(0), loaded(1)], 600, id="loading"),
        ],
    )
    def test_a_phase_that_lasts_too_long_ends_the_rollout(self, phase, workers, limit):
        def after(seconds: float):
            return step(make_view(*workers, phase=phase, phase_seconds=seconds)).problem

        assert after(limit) is None
        problem = after(limit + 1)
        assert problem is not None
        assert problem.halt
        assert problem.reason is ConditionReason.DEADLINE_EXCEEDED

    def test_it_is_told_what_who_is_late_is_at(self):
        late = {"phase": LOADING, "phase_seconds": 601}

        def told_of(worker: AWorker) -> str:
            problem = step(make_view(worker, loaded(1), **late)).problem
            return problem.message if problem else ""

        assert "not done within the time-out, it is at 'paused'" in told_of(held(0))
        assert "it is at 'load 42'" in told_of(make_worker(0).loading("41", "42"))

    def test_a_drain_may_take_its_time_before_a_pause_is_late(self):
        workers = [pausing(0), held(1)]
        pause = {"mode": "Wait", "drainTimeoutSeconds": 100}
        late = {"phase": PAUSING, "pause": pause}

        assert step(make_view(*workers, phase_seconds=160, **late)).problem is None
        assert step(make_view(*workers, phase_seconds=161, **late)).problem is not None

    def test_a_silent_one_that_may_fail_is_taken_out_of_the_service(self):
        view = make_view(
            staged(0).silent(70), held(1), phase=PAUSING, phase_seconds=61, maxFailures=1
        )

        assert told(step(view).actions) == ["Quarantine policy-0"]

    def test_a_load_that_broke_an_engine_halts(self):
        broke = make_worker(0).joining("41").failed_to_load("42")
        taken = step(make_view(broke, held(1)))

        assert taken.problem is not None
        assert taken.problem.halt
        assert not [a for a in told(taken.actions) if a.startswith("load 42")]

    def test_also_where_it_broke_the_only_one(self):
        broke = make_worker(0).joining("41").failed_to_load("42")
        problem = step(make_view(broke)).problem

        assert problem is not None
        assert problem.halt

    def test_not_while_others_are_on_their_way(self):
        broke = make_worker(0).joining("41").failed_to_load("42")
        problem = step(make_view(broke, make_worker(1).joining("42"))).problem

        assert problem is None or not problem.halt

    def test_after_a_broken_load_a_later_refusal_is_let_rest_too(self):
        broke = old(0).failed_to_load("42", age_seconds=50)
        refused = broke.refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=1)

        assert step(make_view(refused)).actions == ()

    def test_a_load_that_was_refused_within_the_budget_fences_its_worker(self):
        refused = held(0).failed_to_load("42", Reason.CHECKPOINT_CHANGED)
        taken = step(make_view(refused, held(1), maxFailures=1))

        assert told(taken.actions) == ["fence on policy-0", "load 42 on policy-1"]


class TestOneThatIsCutOffFromUs:
    """Clients reach it, and a new leader never heard what is in its engine."""

    def test_nobody_goes_on_beside_it_at_once(self):
        taken = step(make_view(cut_off(0, seconds=60), held(1), wants="43"))

        assert told(taken.actions) == ["stage 43 on policy-1"]

    def test_it_is_taken_out_of_the_service_when_others_have_waited_for_long(self):
        taken = step(make_view(cut_off(0, seconds=61), held(1), wants="43"))

        assert "Quarantine policy-0" in told(taken.actions)

    def test_also_on_the_way_back(self):
        taken = step(make_view(cut_off(0, seconds=61), held(1), halted=True))

        assert "Quarantine policy-0" in told(taken.actions)

    def test_not_while_nobody_waits_for_it(self):
        taken = step(make_view(cut_off(0, seconds=61), staged(1), wants="43"))

        assert "Quarantine" not in str(told(taken.actions))


class TestLeases:
    def test_a_pause_that_would_end_soon_is_renewed(self):
        ending = make_worker(0).paused("41", lease_seconds=14).staged("42")
        taken = step(make_view(ending, staged(1)))

        assert "pause on policy-0" in told(taken.actions)

    def test_also_while_it_loads_for_what_loads_without_a_lease_closes_its_latch(self):
        taken = step(make_view(make_worker(0).loading("41", "42").heard(16), loaded(1)))

        assert told(taken.actions) == ["pause on policy-0"]

    def test_also_while_the_load_of_what_was_overtaken_still_runs(self):
        busy = make_worker(0).loading("41", "42").heard(16)

        assert told(step(make_view(busy, held(1), wants="43")).actions[2:]) == [
            "pause on policy-0",
            "resume 41 on policy-1",
        ]

    def test_also_while_the_load_of_what_was_given_up_still_runs(self):
        busy = make_worker(0).loading("41", "42").heard(16)
        ending = make_worker(1).paused("41").heard(16)
        taken = step(make_view(busy, ending, halted=True))

        assert told(taken.actions[:2]) == ["pause on policy-0", "pause on policy-1"]
        assert told(taken.actions[2:]) == ["resume 41 on policy-1"], "the last call counts"

    def test_who_is_left_behind_is_not_told_to_wait(self):
        ending = held(0).failed_to_load("42", Reason.CHECKPOINT_CHANGED).heard(20)
        taken = step(make_view(ending, held(1), maxFailures=1))

        assert told(taken.actions[-1:]) == ["fence on policy-0"]

    def test_a_newcomer_waits_until_the_load_of_what_was_overtaken_has_ended(self):
        """Admitted, it would serve; and those that have loaded by then could not open beside it."""
        busy = make_worker(0).loading("41", "42")
        newcomer = make_worker(1).joining("41")

        assert "admit 41 on policy-1" not in told(
            step(make_view(busy, newcomer, wants="41")).actions
        )
        done = make_worker(0).serving("41")
        assert "admit 41 on policy-1" in told(step(make_view(done, newcomer, wants="41")).actions)

    def test_how_long_ago_it_was_told_counts(self):
        ending = make_worker(0).paused("41", lease_seconds=20).staged("42").heard(6)

        assert "pause on policy-0" in told(step(make_view(ending, staged(1))).actions)
