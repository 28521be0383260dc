"""Canary, one decision at a time: probe, stage, set apart, load, probe, judge."""

from __future__ import annotations

import pytest
from tests.support.builders import AWorker, make_view, make_worker, told

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.weights import CanaryVerdict, RolloutPhase
from fleet_operator.core.strategies import canary, synchronized
from fleet_worker.protocol import Reason

STEP = canary.then(synchronized.step)
COMPARED = {"compared_with": "41", "logprob_drift": 0.1, "kl": 0.1}


def old(n: int) -> AWorker:
    return make_worker(n).serving("41")


def known(n: int) -> AWorker:
    return old(n).probed("41")


def apart(n: int) -> AWorker:
    return make_worker(n).joining("41").probed("41").staged("42")


def loaded(n: int) -> AWorker:
    return make_worker(n).joining("42").probed("41")


def judged(n: int, **found) -> AWorker:
    return make_worker(n).joining("42").probed("42", **COMPARED | found)


@pytest.mark.parametrize(
    ("first", "done"),
    [
        pytest.param(old(0), ["probe 41 on policy-0"], id="the baseline comes first"),
        pytest.param(known(0), ["stage 42 on policy-0"], id="then the bytes"),
        pytest.param(known(0).staged("42"), ["fence on policy-0"], id="then it is set apart"),
        pytest.param(apart(0), ["load 42 on policy-0"], id="then it loads, closed"),
        pytest.param(loaded(0), ["probe 42 on policy-0"], id="then it is compared"),
        pytest.param(known(0).doing("stage", "42"), [], id="who works is left to it"),
        pytest.param(
            known(0).refused("42", Reason.SOURCE_NOT_FOUND), [], id="a refusal is let rest"
        ),
        pytest.param(
            make_worker(0).loading("41", "42").probed("41"), [], id="a load under way is left to it"
        ),
    ],
)
def test_what_a_canary_does_next(first, done):
    taken = STEP(make_view(first, old(1)))

    assert told(taken.actions) == done
    assert taken.phase is RolloutPhase.JUDGING


def test_a_canary_is_set_apart_when_its_requests_have_ended():
    (action,) = STEP(make_view(known(0).staged("42"), old(1))).actions

    assert action.drain_timeout_seconds == 60


@pytest.mark.parametrize(
    ("first", "disturbed"),
    [(known(0), False), (known(0).staged("42"), True), (loaded(0), True)],
    ids=["staging", "set apart in this step", "loaded"],
)
def test_the_fleet_is_left_alone_otherwise_while_a_canary_is_apart(first, disturbed):
    assert STEP(make_view(first, old(1))).disturbed is disturbed


def test_a_silent_worker_is_no_canary():
    assert told(STEP(make_view(known(0).silent(), known(1))).actions) == ["stage 42 on policy-1"]


def test_as_many_canaries_as_asked_for():
    taken = STEP(make_view(known(0), known(1), known(2), canary={"workers": 2}))

    assert told(taken.actions) == ["stage 42 on policy-0", "stage 42 on policy-1"]


def test_nobody_is_judged_before_all_of_them_were_compared():
    taken = STEP(make_view(judged(0), loaded(1), old(2), canary={"workers": 2}))

    assert taken.verdict is None


def test_a_good_verdict_names_the_figures():
    verdict = STEP(make_view(judged(0), old(1))).verdict

    assert verdict is not None
    assert verdict.passed
    assert (verdict.version, verdict.pods) == ("42", ("policy-0",))
    assert verdict.message == (
        "canary policy-0 with version 42 against 41: the logits are numbers; repetition 10%, limit "
        "50%; logprob drift 100 millinats, limit 2000; KL 100 millinats, limit 2000."
    )


@pytest.mark.parametrize(
    ("found", "told_of"),
    [
        pytest.param({"finite": False}, "the logits are numbers", id="NaN"),
        pytest.param({"repetition": 0.51}, "repetition 51%", id="repetition"),
        pytest.param({"logprob_drift": 2.1}, "logprob drift 2100 millinats", id="drift"),
        pytest.param({"kl": 2.1}, "KL 2100 millinats", id="KL"),
    ],
)
def test_a_bad_verdict_gives_the_version_up(found, told_of):
    taken = STEP(make_view(judged(0, **found), old(1)))

    assert taken.verdict is not None
    assert not taken.verdict.passed
    assert taken.problem is not None
    assert taken.problem.halt
    assert taken.problem.reason is ConditionReason.CANARY_REFUSED
    assert told_of in taken.problem.message
    assert "No client got a token of it" in taken.problem.message


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        pytest.param({"repetition": 0.3}, {"maxRepetitionPercent": 30}, id="repetition"),
        pytest.param({"logprob_drift": 0.25}, {"maxLogprobDriftMillinats": 250}, id="drift"),
        pytest.param({"kl": 0.0}, {"maxKLMillinats": 0}, id="KL"),
    ],
)
def test_a_figure_at_its_limit_passes_and_one_beyond_is_refused(found, limits):
    ((name, figure),) = found.items()
    at, beyond = (
        STEP(make_view(judged(0, **{"kl": 0.0, name: value}), old(1), canary=limits)).verdict
        for value in (figure, figure + 0.01)
    )

    assert at is not None
    assert beyond is not None
    assert (at.passed, beyond.passed) == (True, False)


@pytest.mark.parametrize(
    ("workers", "replicas", "canaries"),
    [(1, 4, 1), (2, 4, 2), ("1%", 4, 1), ("50%", 4, 2), ("51%", 4, 3), ("100%", 4, 4)],
)
def test_a_share_of_canaries_is_rounded_up(workers, replicas, canaries):
    alike = (known(ordinal) for ordinal in range(replicas))
    taken = STEP(make_view(*alike, canary={"workers": workers}))

    assert len(taken.actions) == canaries


def test_the_worst_of_several_canaries_decides():
    taken = STEP(make_view(judged(0), judged(1, kl=5), old(2), canary={"workers": 2}))

    assert taken.verdict is not None
    assert taken.verdict.kl == 5


class TestThen:
    def test_a_version_that_passed_goes_to_the_others_with_the_strategy_that_follows(self):
        said = CanaryVerdict(version="42", passed=True)
        taken = STEP(make_view(make_worker(0).joining("42"), old(1), verdict=said))

        assert taken.phase is RolloutPhase.STAGING
        assert told(taken.actions) == ["stage 42 on policy-1"]

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(None, id="no verdict"),
            pytest.param(CanaryVerdict(version="41", passed=True), id="one on another version"),
            pytest.param(CanaryVerdict(version="42", passed=False), id="a bad one"),
        ],
    )
    def test_otherwise_it_is_judged(self, said):
        assert STEP(make_view(old(0), old(1), verdict=said)).phase is RolloutPhase.JUDGING

    def test_a_version_that_everybody_serves_is_not_judged_any_more(self):
        taken = STEP(make_view(make_worker(0).serving("42")))

        assert taken.phase is RolloutPhase.APPLIED

    def test_after_a_halt_the_canary_is_brought_back(self):
        taken = STEP(make_view(judged(0), old(1), halted=True))

        assert taken.goal.version == "41"
        assert told(taken.actions) == ["stage 41 on policy-0"]


class TestTheOthers:
    def test_joiners_come_in_at_the_old_version_meanwhile(self):
        taken = STEP(make_view(apart(0), old(1), make_worker(2).joining("41")))

        assert "admit 41 on policy-2" in told(taken.actions)

    def test_whom_somebody_has_paused_is_let_go(self):
        taken = STEP(make_view(apart(0), make_worker(1).paused("41")))

        assert "resume 41 on policy-1" in told(taken.actions)

    def test_but_not_beside_one_that_generates_something_else(self):
        taken = STEP(make_view(apart(0), make_worker(1).paused("41"), make_worker(2).serving("40")))

        assert "resume 41 on policy-1" not in told(taken.actions)


class TestSuspended:
    def test_nothing_is_begun(self):
        assert STEP(make_view(known(0), old(1), suspended=True)).actions == ()

    def test_workers_come_in_at_what_is_served_and_are_no_canaries(self):
        joiner = make_worker(0).joining("41")

        assert told(STEP(make_view(joiner, suspended=True)).actions) == ["admit 41 on policy-0"]

    def test_a_canary_goes_back_to_those_that_serve(self):
        taken = STEP(make_view(loaded(0), old(1), suspended=True))

        assert told(taken.actions) == ["stage 41 on policy-0"]


def test_where_one_may_fail_the_next_one_is_the_canary():
    refused = known(0).refused("42", Reason.SOURCE_NOT_FOUND)
    taken = STEP(make_view(refused, known(1), known(2), maxFailures=1))

    assert taken.problem is None
    assert taken.failed == ("policy-0",)
    assert told(taken.actions) == ["stage 42 on policy-1"]


def test_and_goes_on_as_such_when_it_is_set_apart():
    refused = known(0).refused("42", Reason.SOURCE_NOT_FOUND)
    taken = STEP(make_view(refused, apart(1), maxFailures=1))

    assert taken.problem is None
    assert told(taken.actions) == ["load 42 on policy-1"]


@pytest.mark.parametrize(
    ("first", "halts"),
    [
        pytest.param(known(0).refused("42", Reason.SOURCE_NOT_FOUND), False, id="a refusal"),
        pytest.param(apart(0).failed_to_load("42"), True, id="a load that broke"),
    ],
)
def test_a_canary_that_cannot_take_the_version(first, halts):
    problem = STEP(make_view(first, old(1))).problem

    assert problem is not None
    assert problem.halt is halts


def test_canaries_that_take_too_long_are_not_waited_for():
    limit = 900 + 60 + 3 * 600

    def after(seconds: float, *workers: AWorker):
        return STEP(make_view(*workers, phase=RolloutPhase.JUDGING, phase_seconds=seconds)).problem

    assert after(limit, apart(0), old(1)) is None
    assert after(limit + 1, judged(0), old(1)) is None
    problem = after(limit + 1, apart(0), old(1))
    assert problem is not None
    assert problem.halt
    assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
    assert "it is at 'joining' (policy-0)" in problem.message


def test_without_anybody_to_judge_nobody_is_waited_for():
    taken = STEP(make_view(old(0).silent(), phase=RolloutPhase.JUDGING, phase_seconds=1e6))

    assert taken.phase is RolloutPhase.PENDING
    assert taken.problem is None
    assert taken.note == "no worker is judged with 42"


def test_members_that_have_loaded_what_was_overtaken_go_on_with_it_before_anybody_is_judged():
    ahead = [make_worker(n).paused("42").loaded() for n in range(2)]
    taken = STEP(make_view(*ahead, wants="43"))

    assert told(taken.actions) == ["resume 42 on policy-0", "resume 42 on policy-1"]
    assert taken.goal.version == "42"


def test_what_goes_wrong_on_that_way_gives_the_newest_version_not_up():
    ahead = make_worker(0).paused("42").loaded()
    refused = make_worker(1).paused("41").staged("42").failed_to_load("42")
    taken = STEP(make_view(ahead, refused, wants="43"))

    assert taken.problem is not None
    assert not taken.problem.halt


def test_pauses_of_those_that_still_load_what_was_overtaken_are_renewed():
    """Whom nobody renews closes its latch after the load, and loses its requests."""
    busy = make_worker(1).loading("41", "42").heard(16)
    view = make_view(old(0), busy, wants="43")

    assert "pause on policy-1" in told(STEP(view).actions)


def test_a_newcomer_waits_for_those_that_load_where_versions_must_not_mix():
    newcomer, busy = make_worker(2).joining("41"), make_worker(1).loading("41", "42")

    assert "admit 41 on policy-2" in told(STEP(make_view(old(0), old(1), newcomer)).actions)
    assert "admit 41 on policy-2" not in told(
        STEP(make_view(old(0), busy, newcomer, wants="43")).actions
    )


def test_a_canary_that_has_loaded_and_answers_no_more_is_not_taken_for_one_that_serves():
    """Its pod is deleted and the cache is late; the other canary was not compared yet."""
    gone = loaded(1).silent().ready()
    taken = STEP(make_view(loaded(0), gone))

    assert taken.phase is RolloutPhase.JUDGING
    assert "admit 42 on policy-0" not in told(taken.actions)


def test_what_all_serve_is_not_judged_any_more():
    serving = make_worker(0).serving("42")

    assert STEP(make_view(serving)).phase is RolloutPhase.APPLIED
    assert STEP(make_view(serving, make_worker(1).serving("42").silent())).phase is (
        RolloutPhase.APPLIED
    )
