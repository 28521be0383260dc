"""Synchronized, one decision at a time: stage all, pause all, load all, resume all."""

from __future__ import annotations

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_transition,
    make_view,
    make_worker,
    texts_of,
)
from tests.support.present import present

from fleet_operator.core.strategies.synchronized import step
from fleet_operator.core.work import Outcome
from fleet_worker.protocol import Operation, Reason
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

STAGING, PAUSING = RolloutPhase.STAGING, RolloutPhase.PAUSING
LOADING, RESUMING = RolloutPhase.LOADING, RolloutPhase.RESUMING


def old(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41")


def staged(n: int) -> WorkerBuilder:
    return old(n).staged("42")


def cut_off(n: int, *, seconds: float) -> WorkerBuilder:
    return make_worker(n).silent(seconds).ready()


def pausing(n: int) -> WorkerBuilder:
    return make_worker(n).pausing("41").staged("42")


def held(n: int) -> WorkerBuilder:
    return make_worker(n).paused("41").staged("42")


def loaded(n: int) -> WorkerBuilder:
    return make_worker(n).paused("42").loaded()


def new(n: int) -> WorkerBuilder:
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

    assert (taken.phase, texts_of(taken.actions)) == (phase, done)
    assert taken.problem is None


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([held(0), staged(1)], id="pausing"),
        pytest.param([held(0), held(1)], id="loading"),
        pytest.param([loaded(0), loaded(1)], id="resuming"),
        pytest.param([loaded(0), old(1)], id="staging a version that a worker needs to resume"),
    ],
)
def test_the_fleet_is_not_updated_while_requests_are_held(workers):
    assert step(make_view(*workers)).holds_requests


class TestOvertaken:
    def test_after_a_load_the_overtaken_version_is_completed(self):
        taken = step(make_view(loaded(0), held(1), wants="43", transition=make_transition()))

        assert taken.goal.version == "42"
        assert texts_of(taken.actions) == ["load 42 on policy-1"]

    def test_after_a_load_workers_go_back_if_the_trainer_asks_for_the_old_version_again(self):
        workers = [loaded(0), held(1), make_worker(2).loading("41", "42")]
        taken = step(make_view(*workers, wants="41", transition=make_transition()))

        assert taken.goal.version == "41"
        assert texts_of(taken.actions) == ["resume 41 on policy-1", "stage 41 on policy-0"]

    def test_after_a_load_the_version_is_completed_if_a_worker_cannot_go_back(self):
        workers = [loaded(0).refused("41", Reason.SOURCE_ABSENT), held(1)]
        taken = step(make_view(*workers, wants="41", transition=make_transition()))

        assert taken.goal.version == "42"
        assert texts_of(taken.actions) == ["load 42 on policy-1"]

    def test_if_a_worker_lost_the_bytes_the_newest_version_is_loaded(self):
        workers = [loaded(0), make_worker(1).paused("41")]
        taken = step(make_view(*workers, wants="43", transition=make_transition()))

        assert taken.goal.version == "43"
        assert "resume 41 on policy-1" in texts_of(taken.actions)
        assert "resume 42 on policy-0" not in texts_of(taken.actions)


class TestWithoutATimeout:
    """A rollback and a superseded rollout have no barrier: there the pauses count."""

    HOLD = 60 + 60 + 600
    LONG = 3 * HOLD

    def back(self, *workers: WorkerBuilder):
        return texts_of(step(make_view(*workers, halted=True, phase=RolloutPhase.HALTED)).actions)

    def test_a_worker_that_does_not_load_is_left_behind_once_the_others_waited_long(self):
        waits, stays = make_worker(0).paused("41"), loaded(1).staged("41")

        assert "load 41 on policy-1" in self.back(waits.heard(self.LONG - 1), stays)
        assert "fence on policy-1" in self.back(waits.heard(self.LONG), stays)

    def test_a_swap_to_an_abandoned_version_ends_without_a_fence(self):
        """The strategy was InFlight. The pause of a swap is never renewed."""
        swaps = make_worker(1).loading("41", "42").doing("apply", "42")

        assert self.back(old(0), swaps.heard(self.LONG)) == []

    def test_a_worker_that_does_not_pause_is_left_behind(self):
        """Before, by the time of one rollout: then the others can still go back."""
        waits, stays = make_worker(0).paused("40").staged("41"), loaded(1).staged("41").silent()

        assert "Quarantine policy-1" not in self.back(waits.heard(2 * self.HOLD - 1), stays)
        assert "Quarantine policy-1" in self.back(waits.heard(2 * self.HOLD), stays)

    @pytest.mark.parametrize(("seconds", "goes"), [(599, False), (601, True)])
    def test_a_worker_whose_load_is_late_goes_before_one_that_is_in_time(self, seconds, goes):
        work = Operation(kind="load", version="41", running_seconds=seconds)
        waits = make_worker(0).paused("41").heard(2 * self.HOLD)
        loads = make_worker(1).loading("42", "41").staged("41").reporting(operation=work)

        assert ("fence on policy-1" in self.back(waits, loads)) is goes

    def test_a_paused_worker_that_waits_to_read_has_the_time_of_all_holds(self):
        """The trainer has asked for the old version again. Others may read before it."""

        def calls(seconds: float) -> list[str]:
            waits = loaded(0).staged("43").heard(seconds)
            given = {"wants": "41", "phase": RolloutPhase.STAGING, "phase_seconds": 901}
            taken = step(make_view(old(1), waits, **given))
            assert present(taken.problem).reason is ConditionReason.DEADLINE_EXCEEDED
            return texts_of(taken.actions)

        assert "fence on policy-0" not in calls(self.LONG - 1)
        assert "fence on policy-0" in calls(self.LONG)

    def test_a_worker_that_was_paused_later_has_its_own_time(self):
        waits, later = loaded(0).heard(self.LONG), loaded(1).heard(self.HOLD)

        assert "fence on policy-0" in self.back(old(2), waits, later)
        assert "fence on policy-1" not in self.back(old(2), waits, later)

    @pytest.mark.parametrize(
        ("call", "goes"), [("stage 41", True), ("adapter math 7", False)], ids=["base", "adapter"]
    )
    def test_one_that_ignores_its_calls_goes_earlier(self, call, goes):
        """Calls about adapters do not count: a paused worker gets none."""
        stays = loaded(1).heard(2 * self.HOLD + 1).ignoring(call)

        assert ("fence on policy-1" in self.back(old(0), stays)) is goes

    def test_a_paused_worker_that_cannot_get_the_bytes_is_left_behind(self):
        stays = loaded(1)

        assert "fence on policy-1" not in self.back(old(0), stays.heard(self.LONG - 1))
        assert "fence on policy-1" in self.back(old(0), stays.heard(self.LONG))


class TestPausedLongBeforeTheVersion:
    """Workers were paused for long when they became ready for the desired version."""

    LONG = 2 * (60 + 60 + 600) + 1
    TOO_LONG = 3 * (60 + 60 + 600) + 1

    def waiting(self, n: int, *, seconds: float = LONG) -> WorkerBuilder:
        return make_worker(n).paused("42").staged("43").heard(seconds)

    def test_they_get_the_time_of_a_load(self):
        def after(seconds: float):
            workers = (self.waiting(0), self.waiting(1))
            return step(make_view(*workers, wants="43", phase=LOADING, phase_seconds=seconds))

        assert not [a for a in texts_of(after(600).actions) if a.startswith("fence")]
        assert after(600).problem is None
        assert after(601).problem is not None

    def test_without_a_rollout_they_get_no_more_time(self):
        """The WeightVersion was deleted, or its version is refused."""
        held_long = make_worker(0).paused("42").loaded().staged("41").heard(self.TOO_LONG)
        view = make_view(held_long, make_worker(1).paused("41"), wants="41", phase=LOADING)

        assert "fence on policy-0" in texts_of(step(view).actions)

    @pytest.mark.parametrize(
        ("worker", "seconds", "calls"),
        [
            (make_worker(1).serving("41").staged("43"), LONG, {"pause"}),
            (make_worker(1).serving("41").staged("43"), TOO_LONG, {"pause", "fence"}),
            (make_worker(1).serving("41").staged("43").silent(), TOO_LONG, {"Quarantine"}),
        ],
        ids=["long", "too long", "silent"],
    )
    def test_a_worker_that_is_not_paused_yet_is_left_behind_later(self, worker, seconds, calls):
        taken = step(make_view(self.waiting(0, seconds=seconds), worker, wants="43", phase=PAUSING))

        assert {a.split()[0] for a in texts_of(taken.actions) if "policy-1" in a} == calls

    def test_of_many_that_are_not_paused_yet_none_is_left_behind_while_all_are_in_time(self):
        """Their requests still run. The fewer go: here one whose requests wait for too long."""
        waits = self.waiting(0, seconds=self.TOO_LONG)
        serving = [make_worker(n).serving("41").staged("43") for n in (1, 2)]

        def fenced(*workers: WorkerBuilder) -> set[str]:
            taken = step(make_view(*workers, wants="43", phase=PAUSING))
            return {a for a in texts_of(taken.actions) if a.startswith(("fence", "Quarantine"))}

        assert fenced(waits, *serving) == {"fence on policy-0"}
        ignores = serving[0].ignoring("pause", outcome=Outcome.REFUSED)
        assert fenced(waits, ignores, serving[1]) == {"fence on policy-1", "fence on policy-2"}


class TestPausedNextToOthersThatServe:
    """A worker has loaded an abandoned version late; the others serve the applied one and stage."""

    ASTRAY = make_worker(0).paused("42").loaded().staged("43")
    TOO_LONG = 3 * (60 + 60 + 600) + 1

    def actions(self, astray: WorkerBuilder, *others: WorkerBuilder) -> list[str]:
        given = {"wants": "43", "rollout_seconds": 1e6, "transition": make_transition()}
        view = make_view(astray, *others, **given)
        return texts_of(step(view).actions)

    def test_it_goes_back_while_others_stage(self):
        assert self.actions(self.ASTRAY, old(1)) == ["stage 41 on policy-0"]
        assert self.actions(self.ASTRAY.staged("41"), old(1)) == ["load 41 on policy-0"]

    def test_it_goes_back_also_from_weights_that_the_status_does_not_name(self):
        """A release that cannot read the record of a barrier leads in between."""
        others = make_worker(0).paused("40").loaded().staged("41")

        assert self.actions(others, old(1)) == ["load 41 on policy-0"]

    def test_it_waits_for_no_other_that_goes_back_with_it(self):
        slow = make_worker(1).paused("42").loaded()

        assert self.actions(self.ASTRAY.staged("41"), slow, old(2)) == [
            "load 41 on policy-0",
            "stage 41 on policy-1",
        ]

    def test_it_is_fenced_if_it_can_do_neither_for_long(self):
        refused = self.ASTRAY.refused("41", Reason.SOURCE_NOT_FOUND)

        assert "fence on policy-0" not in self.actions(refused.heard(self.TOO_LONG - 2), old(1))
        assert "fence on policy-0" in self.actions(refused.heard(self.TOO_LONG), old(1))


class TestSuspendedOrHalted:
    def test_a_suspended_rollout_starts_nothing(self):
        assert step(make_view(old(0), old(1), suspended=True)).actions == ()

    def test_held_requests_are_released_by_completing_the_rollout(self):
        taken = step(make_view(held(0), held(1), suspended=True))

        assert texts_of(taken.actions) == ["load 42 on policy-0", "load 42 on policy-1"]


class TestFailures:
    def test_a_worker_that_may_fail_is_left_behind_when_the_others_are_ready(self):
        refused = old(0).refused("42", Reason.CHECKPOINT_TRUNCATED)

        assert step(make_view(refused, old(1), maxFailures=1)).problem is None
        assert step(make_view(refused, old(1), maxFailures="50%")).problem is None
        assert step(make_view(refused, old(1), maxFailures="49%")).problem is not None
        taken = step(make_view(refused, staged(1), maxFailures=1))
        assert texts_of(taken.actions) == ["fence on policy-0"]
        (fence,) = taken.actions
        assert fence.drain_timeout_seconds == 60, "its requests may finish first"

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
    def test_a_phase_beyond_its_deadline_ends_the_rollout(self, phase, workers, limit):
        def after(seconds: float):
            return step(make_view(*workers, phase=phase, phase_seconds=seconds)).problem

        assert after(limit) is None
        problem = present(after(limit + 1))
        assert problem.halt
        assert problem.reason is ConditionReason.DEADLINE_EXCEEDED

    @pytest.mark.parametrize(
        ("worker", "is_late"),
        [
            (old(0).has_ended("apply 40", seconds_ago=0, running_seconds=600), False),
            (old(0).has_ended("apply 40", seconds_ago=0, running_seconds=601), True),
            (old(0).has_ended("apply 40", seconds_ago=900), False),
            (old(0).has_ended("apply 40", seconds_ago=901), True),
            (old(0).has_ended("fence", seconds_ago=900), False),
            (old(0).has_ended("load 42", seconds_ago=0), True),
            (old(0).has_ended("apply 40", seconds_ago=1).silent(1), False),
            (old(0).has_ended("apply 40", seconds_ago=901).silent(901), True),
            (old(0).asked_to("fence"), False),
            (old(0).asked_to("load 42"), True),
            (old(0).draining_since(NOW), False),
        ],
        ids=lambda value: str(value) if isinstance(value, bool) else None,
    )
    def test_the_turn_of_a_worker_comes_with_the_end_of_other_work_in_time(self, worker, is_late):
        """Workers still swap to the version before when the next one comes, or they drain."""
        view = make_view(worker, staged(1), phase=STAGING, phase_seconds=2000)

        assert (step(view).problem is not None) is is_late

    def test_a_phase_waits_for_one_swap_and_one_fence_at_most(self):
        """Otherwise a worker that always ends other work would never be late."""
        busy = old(0).has_ended("apply 40", seconds_ago=0)

        def after(seconds: float):
            return step(make_view(busy, staged(1), phase=STAGING, phase_seconds=seconds)).problem

        assert after(600 + 600 + 900) is None
        assert after(600 + 600 + 901) is not None

    def test_a_drain_within_its_timeout_does_not_make_a_pause_late(self):
        workers = [pausing(0), held(1)]
        pause = {"mode": "Wait", "drainTimeoutSeconds": 100}
        late = {"phase": PAUSING, "pause": pause}

        assert step(make_view(*workers, phase_seconds=160, **late)).problem is None
        assert step(make_view(*workers, phase_seconds=161, **late)).problem is not None

    def test_a_swap_that_began_late_in_the_phase_gets_its_time(self):
        """The strategy was Rolling, whose swaps share one phase."""
        swaps = make_worker(0).loading("41", "42").doing("apply", "42")

        def after(seconds: float):
            workers = (swaps.working_for(seconds), loaded(1))
            return step(make_view(*workers, phase=LOADING, phase_seconds=1801)).problem

        assert after(600) is None
        assert after(601) is not None

    def test_a_worker_that_began_to_stage_late_gets_its_time(self):
        """It was added, or has restarted, in the middle of the phase."""
        stages = old(0).doing("stage", "42")
        started = old(0).reporting(uptime_seconds=5.0)

        def after(worker: WorkerBuilder, seconds: float):
            view = make_view(worker, staged(1), phase=STAGING, phase_seconds=seconds)
            return step(view).problem

        assert after(stages, 901) is None
        assert after(started, 901) is None
        assert after(stages.working_for(901), 902) is not None
        assert after(stages, 1801) is not None


class TestUnreachableWorker:
    """Clients reach it, and a new leader never heard what is in its engine."""

    def test_an_unreachable_worker_is_quarantined_during_a_rollback(self):
        taken = step(make_view(cut_off(0, seconds=61), held(1), halted=True))

        assert "Quarantine policy-0" in texts_of(taken.actions)


class TestLeases:
    def test_a_joining_worker_waits_for_the_load_of_an_overtaken_version(self):
        """Admitted, it would serve; and the loaded ones could not open next to it."""
        busy = make_worker(0).loading("41", "42")
        newcomer = make_worker(1).joining("41")

        assert "admit 41 on policy-1" not in texts_of(
            step(make_view(busy, newcomer, wants="41")).actions
        )
        done = make_worker(0).serving("41")
        assert "admit 41 on policy-1" in texts_of(
            step(make_view(done, newcomer, wants="41")).actions
        )
