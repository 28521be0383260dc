"""InFlight and Rolling, one decision at a time: each worker swaps by itself, so many at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import NOW, AWorker, make_view, make_worker, told

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.strategies import in_flight, rolling
from fleet_worker.protocol import Operation, Reason

STAGING, LOADING = RolloutPhase.STAGING, RolloutPhase.LOADING


def old(n: int) -> AWorker:
    return make_worker(n).serving("41")


def staged(n: int) -> AWorker:
    return old(n).staged("42")


def new(n: int) -> AWorker:
    return make_worker(n).serving("42")


def swapping(n: int) -> AWorker:
    return staged(n).doing("apply", "42")


def verifying(n: int) -> AWorker:
    """Swapping, in the words of an imagined next release."""
    return replace(old(n), said={**(old(n).said or {}), "phase": "verifying"})


def view(*workers: AWorker, **given):
    return make_view(*workers, one_voice=False, **given)


@pytest.mark.parametrize(
    ("workers", "at_once", "done"),
    [
        pytest.param([old(0), old(1)], 1, ["stage 42 on policy-0", "stage 42 on policy-1"], id="all stage"),
        pytest.param([staged(0), staged(1), staged(2)], 1, ["apply 42 on policy-0"], id="one goes"),
        pytest.param([staged(0), staged(1), staged(2)], 2, ["apply 42 on policy-0", "apply 42 on policy-1"], id="two go"),
        pytest.param([swapping(0), staged(1)], 1, [], id="the next waits"),
        pytest.param([staged(0).asked_to("apply 42"), staged(1)], 1, [], id="a call on its way counts"),
        pytest.param([old(0).asked_to("apply 42"), staged(1)], 1, [], id="a call that has taken the bytes counts"),
        pytest.param([verifying(0), staged(1)], 1, ["stage 42 on policy-0"], id="a phase of a newer release counts as away"),
        pytest.param([new(0), staged(1)], 1, ["apply 42 on policy-1"], id="then it goes"),
        pytest.param([staged(0), make_worker(1).joining("41")], 1, ["stage 42 on policy-1"], id="one that is away counts"),
        pytest.param([new(0), old(1).doing("stage", "42")], 1, [], id="who stages is left to it"),
        pytest.param([staged(0), old(1).silent()], 1, [], id="a silent one counts as away"),
        pytest.param([new(0), new(1)], 1, [], id="all is done"),
    ],
)  # fmt: skip
def test_rolling(workers, at_once, done):
    assert told(rolling.step(view(*workers, maxUnavailable=at_once)).actions) == done


def test_workers_that_are_about_to_go_do_not_count_as_serving():
    workers = [staged(0), make_worker(1).joining("41"), staged(2).draining_since(NOW)]

    assert "apply" not in str(told(rolling.step(view(*workers, replicas=2)).actions))


def test_no_more_workers_count_as_serving_than_are_wanted():
    taken = rolling.step(view(staged(0), staged(1), staged(2), replicas=2))

    assert told(taken.actions) == ["apply 42 on policy-0"]


def test_the_fleet_is_left_alone_otherwise_from_the_step_that_takes_somebody_away():
    assert rolling.step(view(staged(0), staged(1))).disturbed
    assert rolling.step(view(swapping(0), staged(1))).disturbed
    assert rolling.step(view(staged(0).asked_to("apply 42"), staged(1))).disturbed
    assert not rolling.step(view(old(0), staged(1), suspended=True)).disturbed


def test_in_flight_everybody_goes_as_soon_as_he_can():
    taken = in_flight.step(view(staged(0), old(1), staged(2)))

    assert told(taken.actions) == [
        "apply 42 on policy-0",
        "apply 42 on policy-2",
        "stage 42 on policy-1",
    ]


@pytest.mark.parametrize(
    ("workers", "phase"),
    [
        ([old(0), staged(1)], STAGING),
        ([swapping(0), staged(1)], LOADING),
        ([new(0), staged(1)], LOADING),
        ([make_worker(0).paused("42"), new(1)], RolloutPhase.RESUMING),
        ([new(0), new(1)], RolloutPhase.APPLIED),
        ([], RolloutPhase.PENDING),
    ],
)
def test_phases(workers, phase):
    assert in_flight.step(view(*workers)).phase is phase


def test_what_was_loading_goes_on_loading_when_a_swap_came_to_nothing():
    assert in_flight.step(view(staged(0), staged(1), phase=LOADING)).phase is LOADING


class TestHeldWithoutWork:
    """What an older leader, or another strategy, has paused and left."""

    def test_a_swap_that_was_begun_is_finished(self):
        held = make_worker(0).paused("41").staged("42")

        assert told(in_flight.step(view(held)).actions) == ["load 42 on policy-0"]

    def test_without_the_bytes_it_goes_on_as_it_is(self):
        taken = in_flight.step(view(make_worker(0).paused("41")))

        assert told(taken.actions) == ["resume 41 on policy-0"]

    def test_one_that_has_the_weights_goes_on_with_them(self):
        assert told(in_flight.step(view(make_worker(0).paused("42"))).actions) == [
            "resume 42 on policy-0"
        ]

    def test_one_whose_swap_comes_to_nothing_goes_on_as_it_is(self):
        held = make_worker(0).paused("41").staged("42")

        assert told(in_flight.step(view(held.heard(1439))).actions[-1:]) == ["load 42 on policy-0"]
        assert told(in_flight.step(view(held.heard(1440))).actions[-1:]) == [
            "resume 41 on policy-0"
        ]

    def test_one_that_works_is_left_to_it(self):
        assert in_flight.step(view(make_worker(0).loading("41", "42"))).actions == ()


class TestFailures:
    BROKE = make_worker(0).joining("41").failed_to_load("42")

    def under_way(self, *workers: AWorker, **given):
        return in_flight.step(view(*workers, phase=LOADING, **given))

    def test_a_refusal_stops_new_swaps_and_is_said(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)
        taken = in_flight.step(view(refused, staged(1)))

        assert taken.actions == ()
        assert taken.problem is not None
        assert not taken.problem.halt

    def test_a_swap_that_breaks_an_engine_halts(self):
        problem = self.under_way(self.BROKE, staged(1)).problem

        assert problem is not None
        assert problem.halt

    def test_one_may_fail_where_it_is_allowed(self):
        taken = self.under_way(self.BROKE, staged(1), maxFailures=1)

        assert taken.problem is None
        assert "apply 42 on policy-1" in told(taken.actions)

    def test_who_is_left_behind_is_said_when_nobody_else_is_left_to_swap(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)

        assert self.under_way(refused, staged(1), maxFailures=1).problem is None
        problem = self.under_way(refused, new(1), maxFailures=1).problem
        assert problem is not None
        assert not problem.halt
        assert problem.message.startswith(
            "1 worker cannot take version 42 (/weights/step_42) and serves an older one. "
            "CheckpointTruncated: injected (policy-0)."
        )

    def test_after_the_end_it_is_no_failure_of_the_rollout_but_of_a_joiner(self):
        applied = {"phase": RolloutPhase.APPLIED, "applied": "42"}
        problem = in_flight.step(view(self.BROKE, new(1), **applied)).problem

        assert problem is not None
        assert not problem.halt
        assert "cannot join" in problem.message

    def test_halt_leaves_everybody_where_he_is(self):
        taken = self.under_way(new(0), staged(1), halted=True)

        assert taken.actions == ()
        assert (taken.goal.version, taken.phase) == ("41", RolloutPhase.APPLIED)

    def test_rollback_takes_everybody_back(self):
        taken = self.under_way(new(0).staged("41"), staged(1), halted=True, onFailure="Rollback")

        assert told(taken.actions) == ["apply 41 on policy-0"]

    @pytest.mark.parametrize(("mode", "limit"), [("Keep", 600), ("Abort", 600), ("Wait", 600 + 60)])
    def test_a_swap_that_never_ends_is_cut_out(self, mode, limit):
        given = {"pause": {"mode": mode}, "maxFailures": 1}

        def done(worker: AWorker) -> list[str]:
            return told(self.under_way(worker, new(1), **given).actions)

        assert done(self.running(limit - 1)) == []
        assert done(self.running(limit + 1)) == ["fence on policy-0"]
        assert done(self.running(limit - 10).silent(9)) == []
        assert done(self.running(limit - 10).silent(11)) == ["Quarantine policy-0"]

    def test_an_old_answer_makes_no_swap_late_its_worker_may_have_ended_it_since(self):
        asked_long_ago = self.running(590).heard(20)
        taken = self.under_way(asked_long_ago, new(1))

        assert taken.problem is None
        assert told(taken.actions) == ["pause on policy-0"]  # renewed
        just_silent = asked_long_ago.silent(0.001)
        assert self.under_way(just_silent, new(1)).problem is None

    @staticmethod
    def running(seconds: float) -> AWorker:
        """In a swap that had lasted so long when it answered last."""
        work = Operation(kind="apply", version="42", running_seconds=seconds)
        return make_worker(0).paused("41")._says(operation=work)

    def test_staging_that_lasts_too_long_halts(self):
        late = {"phase": STAGING, "phase_seconds": 901}
        problem = in_flight.step(view(old(0), staged(1), **late)).problem

        assert problem is not None
        assert problem.halt


def test_a_suspended_rollout_begins_nothing():
    assert in_flight.step(view(staged(0), old(1), suspended=True)).actions == ()


class TestJoiners:
    def test_both_versions_are_welcome_while_versions_mix(self):
        joiners = [make_worker(1).joining("41"), make_worker(2).joining("42")]
        taken = rolling.step(view(new(0), *joiners, maxUnavailable=1))

        assert "admit 42 on policy-2" in told(taken.actions)
        assert "stage 42 on policy-1" in told(taken.actions)

    def test_the_first_ones_come_in_at_the_wanted_version(self):
        assert told(rolling.step(view(make_worker(0).joining("41"))).actions) == [
            "stage 42 on policy-0"
        ]

    def test_but_not_while_it_is_suspended(self):
        taken = rolling.step(view(make_worker(0).joining("41"), suspended=True))

        assert told(taken.actions) == ["admit 41 on policy-0"]

    def test_after_a_halt_they_come_in_at_what_was_served_last(self):
        joiner = make_worker(1).joining("41")
        taken = rolling.step(view(staged(0), joiner, halted=True))

        assert told(taken.actions) == ["admit 41 on policy-1"]


class TestWithoutAnEnd:
    def problem(self, *workers: AWorker, seconds: float, **given):
        taken = rolling.step(view(*workers, phase_seconds=seconds, phase=STAGING, **given))
        assert told(taken.actions) == told(rolling.step(view(*workers, **given)).actions)
        return taken.problem

    def test_that_nobody_may_go_since_others_are_away_is_said(self):
        workers = [staged(0), staged(1), make_worker(2).silent().unready()]
        limit = 900 + 3 * 600

        assert self.problem(*workers, seconds=limit) is None
        problem = self.problem(*workers, seconds=limit + 1)
        assert problem is not None
        assert not problem.halt
        assert problem.message.startswith(
            "policy-0, policy-1 wait with version 42: 1 worker does not serve, and maxUnavailable "
            "lets 1 be away."
        )

    def test_a_swap_that_comes_to_nothing_again_and_again_is_said_and_goes_on(self):
        problem = self.problem(staged(0), new(1), seconds=900 + 2 * 600 + 1)

        assert problem is not None
        assert not problem.halt
        assert "it is at 'serving' (policy-0)" in problem.message


def test_the_pause_of_a_load_that_another_strategy_began_is_renewed():
    busy = make_worker(0).loading("41", "42").heard(16)

    assert "pause on policy-0" in told(rolling.step(view(busy, old(1))).actions)
