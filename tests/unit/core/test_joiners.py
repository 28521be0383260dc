"""Workers with a closed latch: brought to what the fleet serves, admitted when it disturbs nobody."""

from __future__ import annotations

from tests.support.builders import AWorker, make_view, make_worker, target, told

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.joiners import Admission, Joining, join
from fleet_worker.protocol import Reason


def joiner(n: int = 0, version: str | None = "base") -> AWorker:
    return make_worker(n).joining(version)


def decide(
    *workers: AWorker,
    version: str = "42",
    fallback: str = "41",
    coming: str | None = None,
    open_now: bool = True,
    first: bool = False,
    mixed: bool = False,
    **rollout,
) -> Joining:
    view = make_view(*workers, **rollout)
    admission = Admission(
        version=target(version),
        fallback=target(fallback),
        open_now=open_now,
        coming=target(coming) if coming else None,
        first=first,
        mixed=mixed,
        may_fail=view.may_fail,
    )
    return join(view.joiners, admission, view.settings)


def done(*workers: AWorker, **given) -> list[str]:
    return told(decide(*workers, **given).actions)


def test_a_joiner_stages_loads_and_is_admitted():
    assert done(joiner()) == ["stage 42 on policy-0"]
    assert done(joiner().doing("stage", "42")) == []
    assert done(joiner().staged("42")) == ["load 42 on policy-0"]
    assert done(joiner().staged("42").doing("load", "42")) == []
    assert done(joiner(version="42")) == ["admit 42 on policy-0"]


def test_one_that_stages_something_else_is_asked_for_the_right_thing():
    assert done(joiner().doing("stage", "41")) == ["stage 42 on policy-0"]


def test_one_that_is_not_up_yet_is_left_alone():
    assert done(make_worker(0).starting(), make_worker(1).broken()) == []


def test_nobody_is_admitted_while_that_would_disturb():
    assert done(joiner(version="42"), open_now=False) == []


def test_nobody_is_admitted_in_the_middle_of_work():
    assert done(joiner(version="42").doing("load", "43")) == []


def test_one_that_is_not_at_rest_is_left_alone():
    assert done(joiner().staged("42").doing("fence")) == []
    assert done(joiner(version="42").doing("fence")) == []


def test_one_that_is_closed_and_says_that_it_serves_or_is_paused_is_fenced_again():
    half_closed = make_worker(0).serving("42")._says(admitted=False)
    assert done(half_closed) == ["fence on policy-0"]
    assert done(make_worker(0).paused("42")._says(admitted=False)) == ["fence on policy-0"]
    assert done(half_closed.doing("fence")) == []


def test_one_that_has_what_is_coming_waits_for_it():
    assert done(joiner(version="43"), coming="43") == []
    assert done(joiner(version="43")) == ["stage 42 on policy-0"]


class TestWhenAVersionCannotBeHad:
    REFUSED = joiner().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_the_fallback_is_prepared_meanwhile(self):
        assert done(self.REFUSED) == ["stage 41 on policy-0"]
        assert done(self.REFUSED.staged("41")) == ["load 41 on policy-0"]

    def test_one_that_is_at_the_fallback_waits_where_versions_do_not_mix(self):
        waiting = joiner(version="41").refused("42", Reason.SOURCE_NOT_FOUND)

        assert done(waiting) == []
        assert done(waiting, mixed=True) == ["admit 41 on policy-0"]

    def test_one_whose_engine_takes_long_to_recover_is_welcome_with_what_it_has(self):
        broke = joiner(version="41").failed_to_load("42", age_seconds=99)

        assert done(broke, mixed=True) == ["admit 41 on policy-0"]
        assert done(broke) == ["stage 42 on policy-0"]

    def test_where_the_fallback_fails_too_both_rest(self):
        refused = joiner().refused("41", Reason.SOURCE_NOT_FOUND, age_seconds=4)
        made = decide(refused)

        assert made.actions == ()
        assert made.requeue_after_seconds == 6

    def test_then_the_wanted_version_is_tried_first(self):
        assert done(joiner().refused("41", Reason.SOURCE_NOT_FOUND, age_seconds=11)) == [
            "stage 42 on policy-0"
        ]

    def test_the_fallbacks_stage_comes_to_its_end_before_the_wanted_version_is_tried_again(self):
        refused = joiner().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=35)

        assert done(refused.doing("stage", "41")) == []
        assert done(refused) == ["stage 42 on policy-0"]

    def test_where_both_were_refused_one_follows_the_other_and_then_both_rest(self):
        def refused(newest: str, oldest: str, age_seconds: float) -> AWorker:
            before = joiner().refused(oldest, Reason.DIGEST_MISMATCH, age_seconds=45)
            return before.refused(newest, Reason.DIGEST_MISMATCH, age_seconds=age_seconds)

        assert done(refused("42", "41", 1)) == ["stage 41 on policy-0"]
        assert decide(refused("41", "42", 4)).requeue_after_seconds == 6
        assert done(refused("41", "42", 11)) == ["stage 42 on policy-0"]

    def test_it_is_tried_again_after_a_while(self):
        refused = joiner().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=4)

        assert decide(refused, fallback="42").requeue_after_seconds == 6
        later = joiner().refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=11)
        assert done(later, fallback="42") == ["stage 42 on policy-0"]


class TestTheFirstOnes:
    REFUSED = joiner().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_better_the_last_good_version_than_none(self):
        at_fallback = joiner(version="41").refused("42", Reason.SOURCE_NOT_FOUND)
        made = decide(at_fallback, first=True)

        assert told(made.actions) == ["admit 41 on policy-0"]
        assert made.problem is not None
        assert not made.problem.halt

    def test_where_one_has_the_version_the_others_follow_it(self):
        made = decide(self.REFUSED, joiner(1, "42"), first=True)

        assert made.problem is None
        assert "admit 42 on policy-1" in told(made.actions)

    def test_not_all_of_them_may_fail(self):
        assert decide(self.REFUSED, first=True, maxFailures=1).problem is not None

    def test_as_many_may_fail_as_in_any_rollout(self):
        assert decide(self.REFUSED, joiner(1), first=True, maxFailures=1).problem is None


class TestShutOut:
    """Who cannot take any version that would let him in needs a person, and it is said."""

    REFUSED = joiner().refused("42", Reason.SOURCE_NOT_FOUND)

    def test_it_is_said_with_the_reason(self):
        problem = decide(self.REFUSED, joiner(1), fallback="42").problem

        assert problem is not None
        assert problem.reason is ConditionReason.SOURCE_NOT_FOUND
        assert not problem.halt
        assert problem.message.startswith(
            "1 worker cannot join at version 42 (/weights/step_42). SourceNotFound: injected "
            "(policy-0). Checked again every 10 s"
        )

    def test_a_load_that_breaks_again_and_again_is_one_problem_in_every_phase(self):
        broke = joiner().failed_to_load("42", age_seconds=99)
        phases = [broke, broke.staged("42"), broke.doing("load", "42"), broke._says(phase="broken")]
        problems = [decide(worker, fallback="42").problem for worker in phases]

        assert len(set(problems)) == 1
        assert problems[0] is not None
        assert problems[0].reason is ConditionReason.WORKERS_FAILING

    def test_where_there_is_another_way_in_nothing_is_said(self):
        assert decide(self.REFUSED, fallback="41").problem is None

    def test_one_whose_engine_the_version_breaks_is_told_of_whatever_other_way_there_is(self):
        problem = decide(joiner().failed_to_load("42", age_seconds=99), fallback="41").problem

        assert problem is not None
        assert problem.message.startswith("1 worker cannot join at version 42")

    def test_where_the_other_way_in_has_failed_too_it_is_said(self):
        refused = joiner().refused("41", Reason.SOURCE_NOT_FOUND)
        problem = decide(refused, fallback="41").problem

        assert problem is not None
        assert problem.message.startswith("1 worker cannot join at version 41")

    def test_it_stays_said_while_one_source_after_the_other_is_tried_again(self):
        rests = joiner().refused("42", Reason.DIGEST_MISMATCH).refused("41", Reason.DIGEST_MISMATCH)
        problems = [
            decide(worker).problem
            for worker in (
                rests,
                rests.doing("stage", "42"),
                rests.refused("42", Reason.DIGEST_MISMATCH),
                rests.refused("42", Reason.DIGEST_MISMATCH).doing("stage", "41"),
            )
        ]

        assert problems[0] is not None
        assert problems[0].reason is ConditionReason.DIGEST_MISMATCH
        assert len(set(problems)) == 1

    def test_nor_of_one_that_is_in_place(self):
        waiting = joiner(version="42").refused("42", Reason.SOURCE_NOT_FOUND)

        assert decide(waiting, fallback="42", open_now=False).problem is None
