"""InFlight and Rolling, one decision at a time: each worker swaps by itself, some of them at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import NOW, WorkerBuilder, make_view, make_worker, texts_of
from tests.support.present import present

from fleet_operator.core.strategies.base import RolloutProblem
from fleet_operator.core.strategies.choice import in_flight, rolling
from fleet_worker.protocol import Operation, Reason
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

STAGING, LOADING = RolloutPhase.STAGING, RolloutPhase.LOADING


def old(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41")


def staged(n: int) -> WorkerBuilder:
    return old(n).staged("42")


def new(n: int) -> WorkerBuilder:
    return make_worker(n).serving("42")


def swapping(n: int) -> WorkerBuilder:
    return staged(n).doing("apply", "42")


def verifying(n: int) -> WorkerBuilder:
    """Swapping, with a phase that only a newer release has."""
    return replace(old(n), reported={**(old(n).reported or {}), "phase": "verifying"})


def view(*workers: WorkerBuilder, **given):
    return make_view(*workers, forbids_mixing=False, **given)


@pytest.mark.parametrize(
    ("workers", "at_once", "done"),
    [
        pytest.param([old(0), old(1)], 1, ["stage 42 on policy-0", "stage 42 on policy-1"], id="all stage"),
        pytest.param([staged(0), staged(1), staged(2)], 1, ["apply 42 on policy-0"], id="one worker is swapped"),
        pytest.param([staged(0), staged(1), staged(2)], 2, ["apply 42 on policy-0", "apply 42 on policy-1"], id="two go"),
        pytest.param([swapping(0), staged(1)], 1, [], id="the next waits"),
        pytest.param([staged(0).asked_to("apply 42"), staged(1)], 1, [], id="a call on its way counts"),
        pytest.param([old(0).asked_to("apply 42"), staged(1)], 1, [], id="a call that has taken the bytes counts"),
        pytest.param([verifying(0), staged(1)], 1, ["stage 42 on policy-0"], id="a phase of a newer release counts as away"),
        pytest.param([new(0), staged(1)], 1, ["apply 42 on policy-1"], id="then it goes"),
        pytest.param([staged(0), make_worker(1).joining("41")], 1, ["admit 41 on policy-1", "stage 42 on policy-1"], id="an unavailable worker counts"),
        pytest.param([new(0), old(1).doing("stage", "42")], 1, [], id="a staging worker is left alone"),
        pytest.param([staged(0), old(1).silent()], 1, [], id="a silent worker counts as unavailable"),
        pytest.param([new(0), new(1)], 1, [], id="all is done"),
    ],
)  # fmt: skip
def test_the_next_step_of_a_rolling_rollout(workers, at_once, done):
    assert texts_of(rolling(view(*workers, maxUnavailable=at_once)).actions) == done


@pytest.mark.parametrize(
    ("sessions", "at_once", "first"),
    [
        pytest.param([3, 1, 2], 1, [1], id="fewest first"),
        pytest.param([3, 1, 2], 2, [1, 2], id="the next fewest follows"),
        pytest.param([2, 1, 1], 1, [1], id="of equals the lowest ordinal"),
    ],
)  # fmt: skip
def test_a_rolling_rollout_starts_with_the_workers_of_fewest_sessions(sessions, at_once, first):
    workers = [staged(n).with_sessions(count) for n, count in enumerate(sessions)]
    taken = rolling(view(*workers, maxUnavailable=at_once))

    assert texts_of(taken.actions) == [f"apply 42 on policy-{n}" for n in first]


def test_workers_whose_clients_name_no_session_are_ordered_by_their_requests():
    workers = [staged(0).with_requests(5), staged(1).with_requests(2), staged(2).with_sessions(3)]

    assert texts_of(rolling(view(*workers)).actions) == ["apply 42 on policy-1"]


def test_a_swap_that_has_begun_is_not_changed_for_a_worker_with_fewer_sessions():
    workers = [staged(0).with_sessions(9).asked_to("apply 42"), staged(1).with_sessions(0)]

    assert rolling(view(*workers)).actions == ()


@given(st.data())
def test_no_more_than_max_unavailable_are_away_however_sessions_change(data):
    """Each look finds other counts, and every call that was made is under way or has ended."""
    replicas = data.draw(st.integers(1, 6))
    at_once = data.draw(st.integers(1, replicas))
    order = list(range(replicas))
    ready, away = set(order), set()
    for _ in range(4 * replicas):
        counts = {n: data.draw(st.integers(0, 9)) for n in order}
        workers = [
            (staged(n) if n in ready else swapping(n) if n in away else new(n)).with_sessions(
                counts[n]
            )
            for n in order
        ]
        taken = rolling(view(*workers, maxUnavailable=at_once))
        begun = {n for n in ready if f"apply 42 on policy-{n}" in texts_of(taken.actions)}
        ready, away = ready - begun, away | begun
        assert len(away) <= at_once
        assert away or not ready, "the rollout continues"
        away -= data.draw(st.sets(st.sampled_from(sorted(away)))) if away else set()


def test_the_fleet_is_not_updated_once_a_worker_is_swapped():
    assert rolling(view(staged(0), staged(1))).holds_requests
    assert rolling(view(swapping(0), staged(1))).holds_requests
    assert rolling(view(staged(0).asked_to("apply 42"), staged(1))).holds_requests
    assert not rolling(view(old(0), staged(1), suspended=True)).holds_requests


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
def test_the_phase_of_a_rollout(workers, phase):
    assert in_flight(view(*workers)).phase is phase


class TestFailures:
    def under_way(self, *workers: WorkerBuilder, **given):
        return in_flight(view(*workers, phase=LOADING, **given))

    def test_a_refusal_stops_new_swaps_and_is_reported(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)
        taken = in_flight(view(refused, staged(1)))

        assert taken.actions == ()
        assert not present(taken.problem).halt

    def test_a_member_whose_engine_refused_the_goal_while_it_joined_halts_the_rollout(self):
        refused = staged(0).failed_to_load("42")
        taken = in_flight(view(refused, phase=RolloutPhase.STAGING))

        assert present(taken.problem).halt

    @pytest.mark.parametrize(
        ("others", "given", "stays"),
        [
            ([staged(1)], {}, "The fleet stays on the applied version."),
            ([new(1)], {}, "Workers that have loaded it keep serving it"),
            ([new(1)], {"onFailure": "Rollback"}, "The fleet stays on the applied version."),
        ],
    )
    def test_an_abandoned_version_that_workers_keep_is_not_called_unused(
        self, others, given, stays
    ):
        failed = staged(0).failed_to_load("42")
        problem = present(self.under_way(failed, *others, **given).problem)

        assert problem.halt
        assert stays in problem.message

    @pytest.mark.parametrize("given", [{"halted": True}, {"suspended": True}])
    def test_a_swap_that_ends_without_the_operator_counts_as_not_serving(self, given):
        swaps = (make_worker(n).paused("41").doing("apply", "42") for n in (1, 2))
        taken = in_flight(view(new(0), *swaps, **given))
        serving = {"halted": "0 of 3 workers serve 41", "suspended": "1 of 3 workers serves 42"}

        assert taken.phase is RolloutPhase.APPLIED
        assert taken.note == serving[next(iter(given))]

    def test_failed_workers_are_reported_when_all_others_have_swapped(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)

        assert self.under_way(refused, staged(1), maxFailures=1).problem is None
        problem = present(self.under_way(refused, new(1), maxFailures=1).problem)
        assert not problem.halt
        assert problem.message.startswith(
            "1 worker cannot load version 42 (/weights/step_42) and serves an older one. "
            "CheckpointTruncated: injected (policy-0)."
        )

    @pytest.mark.parametrize(
        ("other", "age_seconds", "done"),
        [
            pytest.param(new(1), 90, ["apply 42 on policy-0"], id="it has rested"),
            pytest.param(new(1), 89, [], id="it rests"),
            pytest.param(staged(1), 90, ["apply 42 on policy-1"], id="others swap first"),
        ],
    )
    def test_a_worker_whose_engine_failed_swaps_again(self, other, age_seconds, done):
        failed = staged(0).failed_to_load("42", age_seconds=age_seconds)
        given = {"phase": LOADING, "rollout_seconds": 100, "maxFailures": 1}

        assert texts_of(rolling(view(failed, other, **given)).actions) == done

    @pytest.mark.parametrize(("phase", "halts"), [(STAGING, True), (LOADING, False)])
    def test_a_read_that_hangs_is_reported_also_after_others_have_swapped(self, phase, halts):
        reads = old(0).doing("stage", "42")

        def found(seconds: float) -> RolloutProblem | None:
            workers = (reads.working_for(seconds), new(1))
            return in_flight(view(*workers, phase=phase, phase_seconds=901)).problem

        assert found(899) is None
        problem = present(found(901))
        assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
        assert problem.halt is halts

    def test_a_worker_that_drains_does_not_take_the_turn_of_another(self):
        drains = staged(0).draining_since(NOW)
        taken = rolling(view(drains, staged(1), staged(2), staged(3), replicas=3))

        assert texts_of(taken.actions) == ["apply 42 on policy-1"]

    @pytest.mark.parametrize("phase", [STAGING, LOADING])
    def test_a_rollout_is_not_applied_while_a_worker_whose_engine_failed_joins_again(self, phase):
        recovered = make_worker(0).joining("41").failed_to_load("42", age_seconds=1)
        given = {"phase": phase, "rollout_seconds": 60, "maxFailures": 1}
        taken = rolling(view(recovered, new(1), new(2), **given))

        assert taken.phase is LOADING
        assert present(taken.problem).reason is ConditionReason.WORKERS_FAILING
        assert texts_of(taken.actions) == ["admit 41 on policy-0"]

    @pytest.mark.parametrize("reason", [Reason.CHECKPOINT_TRUNCATED, Reason.PEER_UNREADABLE])
    def test_a_broken_engine_counts_also_after_the_worker_has_refused_the_files(self, reason):
        """Otherwise the version is applied in between, and more engines may break than `maxFailures` allows."""
        broke = make_worker(0).joining("41").failed_to_load("42", age_seconds=20)
        broke = broke.refused("42", reason, age_seconds=1)
        given = {"phase": LOADING, "rollout_seconds": 60, "maxFailures": 1}

        assert rolling(view(broke, new(1), new(2), **given)).phase is LOADING
        other = make_worker(1).joining("41").failed_to_load("42", age_seconds=2)
        assert present(rolling(view(broke, other, new(2), **given)).problem).halt
        before = {**given, "rollout_seconds": 10}
        assert rolling(view(broke, new(1), new(2), **before)).phase is RolloutPhase.APPLIED

    @pytest.mark.parametrize(("mode", "limit"), [("Keep", 600), ("Abort", 600), ("Wait", 600 + 60)])
    def test_a_swap_that_never_ends_is_fenced(self, mode, limit):
        given = {"pause": {"mode": mode}, "maxFailures": 1}

        def done(worker: WorkerBuilder) -> list[str]:
            return texts_of(self.under_way(worker, new(1), **given).actions)

        assert done(self.running(limit - 1)) == []
        assert done(self.running(limit + 1)) == ["fence on policy-0"]
        assert done(self.running(limit - 10).silent(9)) == []
        assert done(self.running(limit - 10).silent(11)) == ["Quarantine policy-0"]

    @staticmethod
    def running(seconds: float) -> WorkerBuilder:
        """In a swap that had lasted these seconds when it answered last."""
        work = Operation(kind="apply", version="42", running_seconds=seconds)
        return make_worker(0).paused("41").reporting(operation=work)

    def test_the_pause_of_a_load_that_a_barrier_began_is_renewed(self):
        """Its worker closes at the end of the load if the lease is over."""
        loads = make_worker(0).loading("41", "42").heard(16)

        assert texts_of(self.under_way(loads, new(1)).actions) == ["pause on policy-0"]

    def test_a_swap_in_one_call_is_not_renewed(self):
        """Its worker serves at its end whether the lease is over or not."""
        for seconds in (16, 20, 40):
            assert texts_of(self.under_way(self.running(50).heard(seconds), new(1)).actions) == []


def test_a_suspended_rollout_starts_nothing():
    assert in_flight(view(staged(0), old(1), suspended=True)).actions == ()


class TestRolloutsThatCannotProceed:
    def problem(self, *workers: WorkerBuilder, seconds: float, **given):
        taken = rolling(view(*workers, phase_seconds=seconds, phase=STAGING, **given))
        assert texts_of(taken.actions) == texts_of(rolling(view(*workers, **given)).actions)
        return taken.problem

    def test_too_few_available_workers_are_reported(self):
        workers = [staged(0), staged(1), make_worker(2).silent().unready()]
        limit = 900 + 3 * 600

        assert self.problem(*workers, seconds=limit) is None
        problem = present(self.problem(*workers, seconds=limit + 1))
        assert not problem.halt
        assert problem.message.startswith(
            "policy-0, policy-1 wait for version 42: 1 worker does not serve, and maxUnavailable "
            "is 1."
        )
