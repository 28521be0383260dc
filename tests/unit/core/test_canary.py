"""Canary, one decision at a time: prompts, stage, set apart, load, prompts, verdict."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import (
    WorkerBuilder,
    make_transition,
    make_view,
    make_worker,
    texts_of,
)
from tests.support.figures import figures
from tests.support.present import present

from fleet_operator.core.strategies import canary, synchronized
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.strategies.choice import rolling, strategy_of
from fleet_operator.core.strategies.trials import Trial
from fleet_worker.protocol import Operation, Phase, Reason
from rlfleet_resources.conditions import MAX_MESSAGE_CHARACTERS
from rlfleet_resources.fleet_status import Transition
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import MAX_CANARY_PODS, CanaryVerdict, RolloutPhase

STEP = canary.then(synchronized.step)
TRANSITION = make_transition()
COMPARED = {"compared_with": "41", "logprob_drift": 0.1, "kl": 0.1}


def ending(*workers: WorkerBuilder, transition: Transition = TRANSITION, **given: Any) -> Step:
    """The next step, while members are behind the barrier of an earlier strategy or version."""
    view = make_view(*workers, transition=transition, strategy="Canary", **given)
    return strategy_of(view)(view)


def old(n: int) -> WorkerBuilder:
    return make_worker(n).serving("41")


STARTED = make_worker(0).joining("41").probed("41").reporting(uptime_seconds=5.0)


def known(n: int) -> WorkerBuilder:
    return old(n).probed("41")


def apart(n: int) -> WorkerBuilder:
    return make_worker(n).joining("41").probed("41").staged("42")


def hanging(n: int) -> WorkerBuilder:
    """A canary whose load does not end."""
    work = {"kind": "load", "version": "42", "running_seconds": 2000}
    return apart(n).reporting(operation=Operation.model_validate(work))


def loaded(n: int) -> WorkerBuilder:
    return make_worker(n).joining("42").probed("41")


def trial(n: int = 0, seconds: float = 1e6, *, deaths: int = 0, is_alive: bool = True) -> Trial:
    """That of a canary that got its call long ago."""
    return Trial(f"policy-{n}", f"uid-{n}", seconds, is_alive, deaths)


def judged(n: int, **found) -> WorkerBuilder:
    return make_worker(n).joining("42").probed("42", **COMPARED | found)


@pytest.mark.parametrize(
    "canary",
    [
        pytest.param(make_worker(0).closed_pausing("41"), id="its last requests run"),
        pytest.param(apart(0).reporting(phase=Phase.LOADING).doing("load", "42"), id="it loads"),
        pytest.param(
            make_worker(0).broken().probed("41").staged("42").refused("42", Reason.ENGINE_FAILED),
            id="its load has failed",
        ),
    ],
)
def test_no_other_worker_leaves_its_clients_while_a_canary_is_behind_its_latch(canary):
    taken = STEP(make_view(canary.probed("41").staged("42"), known(1).staged("42"), known(2)))

    assert [text for text in texts_of(taken.actions) if not text.endswith(" policy-0")] == []
    assert taken.phase is RolloutPhase.JUDGING


@pytest.mark.parametrize(
    ("first", "done"),
    [
        pytest.param(old(0), ["probe 41 on policy-0"], id="the baseline comes first"),
        pytest.param(known(0), ["stage 42 on policy-0"], id="then the bytes"),
        pytest.param(known(0).staged("42"), ["fence on policy-0"], id="then it is set apart"),
        pytest.param(apart(0), ["load 42 on policy-0"], id="then it loads, closed"),
        pytest.param(loaded(0), ["probe 42 on policy-0"], id="then it is compared"),
        pytest.param(
            known(0).doing("stage", "42"), [], id="a worker with a running call is left alone"
        ),
        pytest.param(
            known(0).refused("42", Reason.SOURCE_NOT_FOUND), [], id="a refusal is let rest"
        ),
        pytest.param(apart(0).doing("load", "42"), [], id="a load under way is left to it"),
        pytest.param(
            make_worker(0).joining("41").probed("41").doing("stage", "7"),
            ["stage 42 on policy-0"],
            id="a slow read of a superseded version takes no time of the next one",
        ),
        pytest.param(
            old(0).doing("stage", "40"), ["probe 41 on policy-0"], id="nor that of the baseline"
        ),
    ],
)
def test_the_next_step_of_a_canary(first, done):
    taken = STEP(make_view(first, old(1)))

    assert texts_of(taken.actions) == done
    assert taken.phase is RolloutPhase.JUDGING


@pytest.mark.parametrize(
    ("first", "holds_requests"),
    [(known(0), False), (known(0).staged("42"), True), (loaded(0), True)],
    ids=["staging", "set apart in this step", "loaded"],
)
def test_the_fleet_is_not_updated_while_a_canary_is_quarantined(first, holds_requests):
    assert STEP(make_view(first, old(1))).holds_requests is holds_requests


class TestBaselines:
    """`lagging`: it has 40, and no run of the prompts on the applied version 41."""

    lagging = make_worker(0).joining("40").probed("40")

    @pytest.mark.parametrize(
        ("first", "done"),
        [
            pytest.param(lagging, ["stage 41 on policy-0"], id="the bytes of the applied version"),
            pytest.param(lagging.staged("41"), ["load 41 on policy-0"], id="then the load"),
            pytest.param(
                make_worker(0).serving("40").staged("41"), ["fence on policy-0"], id="set apart"
            ),
        ],
    )
    def test_a_canary_without_a_baseline_loads_the_applied_version_first(self, first, done):
        taken = STEP(make_view(first))

        assert texts_of(taken.actions) == done
        assert taken.phase is RolloutPhase.PENDING

    @pytest.mark.parametrize(
        "report",
        [
            pytest.param({}, id="compared with nothing"),
            pytest.param({"compared_with": "40"}, id="with another version"),
            pytest.param(
                {"compared_with": "41", "compared_with_run_id": "other"}, id="with another run"
            ),
        ],
    )
    def test_only_a_comparison_with_the_applied_weights_counts(self, report):
        taken = STEP(make_view(make_worker(0).joining("42").probed("42", **report)))

        assert taken.verdict is None
        assert texts_of(taken.actions) == ["stage 41 on policy-0"]

    def test_a_worker_that_can_compare_with_the_applied_version_comes_first(self):
        taken = STEP(make_view(self.lagging, old(1), canary={"workers": 2}))

        assert texts_of(taken.actions)[0] == "probe 41 on policy-1"
        assert "stage 42 on policy-0" not in texts_of(taken.actions)

    @pytest.mark.parametrize("reason", [Reason.SOURCE_NOT_FOUND, Reason.SOURCE_NOT_READY])
    def test_workers_that_have_all_lost_the_baseline_judge_without_it(self, reason):
        lost = self.lagging.refused("41", reason)
        found = make_worker(0).joining("42").probed("42").refused("41", reason)

        assert "stage 42 on policy-0" in texts_of(STEP(make_view(lost)).actions)
        verdict = present(STEP(make_view(found)).verdict)
        assert verdict.passed
        assert figures(verdict.message) == {42, 10, 50}

    def test_a_refusal_before_the_attempt_does_not_count_as_a_loss(self):
        lost = self.lagging.refused("41", Reason.SOURCE_NOT_FOUND, age_seconds=60)

        assert texts_of(STEP(make_view(lost, rollout_seconds=30)).actions) == [
            "stage 41 on policy-0"
        ]

    def test_a_comparison_with_other_weights_does_not_count(self):
        lost = make_worker(0).joining("42").refused("41", Reason.SOURCE_NOT_FOUND)
        far = {"compared_with": "base", "logprob_drift": 9.0, "kl": 9.0}
        verdict = present(STEP(make_view(lost.probed("42", **far))).verdict)

        assert verdict.passed
        assert (verdict.kl, verdict.logprob_drift) == (0, 0)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(old(1), id="serving"),
            pytest.param(old(1).silent(), id="silent"),
            pytest.param(make_worker(1).joining("40").doing("load", "41"), id="loading"),
        ],
    )
    def test_a_worker_without_the_baseline_does_not_judge_while_another_has_it(self, other):
        lost = make_worker(0).joining("42").probed("42").refused("41", Reason.SOURCE_NOT_FOUND)
        taken = STEP(make_view(lost, other, canary={"workers": 2}))

        assert taken.verdict is None
        assert not any("42" in text for text in texts_of(taken.actions))

    def test_the_only_worker_that_can_compare_is_reported_while_it_is_silent(self):
        lost = self.lagging.staged("42")
        limit = 900 + 60 + 3 * 600

        def after(seconds: float):
            return STEP(make_view(lost, old(1).silent(), phase_seconds=seconds))

        assert after(limit).note.startswith("only policy-1 can compare 42 with 41")
        assert after(limit).problem is None
        problem = present(after(limit + 1).problem)
        assert (problem.reason, problem.halt) == (ConditionReason.DEADLINE_EXCEEDED, False)

    def test_the_only_worker_that_can_compare_tries_again_after_a_refusal(self):
        lost = self.lagging.refused("41", Reason.SOURCE_NOT_FOUND)
        refusing = known(1).refused("42", Reason.SOURCE_UNREADABLE, age_seconds=60)
        taken = STEP(make_view(lost, refusing, maxFailures=1))

        assert "stage 42 on policy-1" in texts_of(taken.actions)
        assert taken.verdict is None
        assert not present(taken.problem).halt


def test_a_good_verdict_has_the_figures():
    verdict = present(STEP(make_view(judged(0), old(1))).verdict)

    assert verdict.passed
    assert (verdict.version, verdict.pods) == ("42", ("policy-0",))
    assert figures(verdict.message) == {42, 41, 10, 50, 100, 2000}
    assert "policy-0" in verdict.message


def test_a_verdict_of_many_canaries_names_only_some():
    many = [judged(n, kl=2.1) for n in range(MAX_CANARY_PODS + 1)]
    taken = STEP(make_view(*many, canary={"workers": "100%"}))

    assert len(present(taken.verdict).pods) == MAX_CANARY_PODS
    assert {2000, 2100} <= figures(present(taken.problem).message)
    assert len(present(taken.problem).message) < MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    ("found", "told_of"),
    [
        pytest.param({"finite": False}, "not finite", id="NaN"),
        pytest.param({"repetition": 0.51}, "repetition 51%", id="repetition"),
        pytest.param({"logprob_drift": 2.1}, "logprob drift 2100 millinats", id="drift"),
        pytest.param({"kl": 2.1}, "KL 2100 millinats", id="KL"),
    ],
)
def test_a_bad_verdict_gives_the_version_up(found, told_of):
    taken = STEP(make_view(judged(0, **found), old(1)))

    assert not present(taken.verdict).passed
    assert taken.problem is not None
    assert taken.problem.halt
    assert taken.problem.reason is ConditionReason.CANARY_REFUSED
    assert told_of in taken.problem.message


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        pytest.param({"repetition": 0.3}, {"maxRepetitionPercent": 30}, id="repetition"),
        pytest.param({"logprob_drift": 0.25}, {"maxLogprobDriftMillinats": 250}, id="drift"),
        pytest.param({"kl": 0.0}, {"maxKLMillinats": 0}, id="KL"),
    ],
)
def test_a_figure_at_its_limit_passes_and_one_above_fails(found, limits):
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
def test_a_percentage_of_canaries_is_rounded_up(workers, replicas, canaries):
    alike = (known(ordinal) for ordinal in range(replicas))
    taken = STEP(make_view(*alike, canary={"workers": workers}))

    assert len(taken.actions) == canaries


def test_the_worst_canary_decides():
    taken = STEP(make_view(judged(0), judged(1, kl=5), old(2), canary={"workers": 2}))

    assert present(taken.verdict).kl == 5


class TestTheNextStrategy:
    def test_a_version_that_passed_is_rolled_out_with_the_next_strategy(self):
        verdict = CanaryVerdict(version="42", passed=True)
        taken = STEP(make_view(make_worker(0).joining("42"), old(1), verdict=verdict))

        assert taken.phase is RolloutPhase.STAGING
        assert texts_of(taken.actions) == ["stage 42 on policy-1"]

    @pytest.mark.parametrize(
        "verdict",
        [
            pytest.param(None, id="no verdict"),
            pytest.param(
                CanaryVerdict(version="41", passed=True), id="a verdict on another version"
            ),
            pytest.param(CanaryVerdict(version="42", passed=False), id="a bad verdict"),
        ],
    )
    def test_a_version_without_a_good_verdict_is_judged(self, verdict):
        assert STEP(make_view(old(0), old(1), verdict=verdict)).phase is RolloutPhase.JUDGING

    def test_a_version_that_every_worker_serves_is_not_judged(self):
        taken = STEP(make_view(make_worker(0).serving("42")))

        assert taken.phase is RolloutPhase.APPLIED


class TestSuspended:
    def test_a_suspended_rollout_starts_nothing(self):
        assert STEP(make_view(known(0), old(1), suspended=True)).actions == ()


def test_the_second_canary_stays_the_canary_in_quarantine():
    refused = known(0).refused("42", Reason.SOURCE_NOT_FOUND)
    taken = STEP(make_view(refused, apart(1), maxFailures=1))

    assert taken.problem is None
    assert texts_of(taken.actions) == ["load 42 on policy-1"]


@pytest.mark.parametrize(
    ("first", "halts"),
    [
        pytest.param(known(0).refused("42", Reason.SOURCE_NOT_FOUND), False, id="a refusal"),
        pytest.param(apart(0).failed_to_load("42"), True, id="a load that broke"),
    ],
)
def test_a_canary_that_cannot_take_the_version_is_a_problem(first, halts):
    problem = present(STEP(make_view(first, old(1))).problem)

    assert problem.halt is halts


def test_canaries_have_a_deadline():
    limit = 900 + 60 + 3 * 600

    def after(seconds: float, *workers: WorkerBuilder):
        given = {"phase": RolloutPhase.JUDGING, "phase_seconds": seconds}
        return STEP(make_view(*workers, trials=[trial(seconds=seconds)], **given)).problem

    assert after(limit, hanging(0), old(1)) is None
    assert after(limit + 1, judged(0), old(1)) is None
    problem = present(after(limit + 1, hanging(0), old(1)))
    assert problem.halt
    assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
    assert "load 42 (policy-0)" in problem.message


def test_without_a_candidate_the_rollout_waits():
    taken = STEP(make_view(old(0).silent(), phase_seconds=1e6))

    assert taken.phase is RolloutPhase.PENDING
    assert taken.problem is None


def test_if_all_canaries_die_the_time_to_judge_does_not_begin_again():
    limit = 900 + 60 + 3 * 600

    def after(seconds: float):
        return STEP(make_view(old(0).silent(), phase=RolloutPhase.JUDGING, phase_seconds=seconds))

    assert after(limit).phase is RolloutPhase.JUDGING
    assert after(limit).problem is None
    late = present(after(limit + 1).problem)
    assert not late.halt
    assert "policy-0" in late.message


@pytest.mark.parametrize(
    ("canary_worker", "trials", "halts"),
    [
        pytest.param(hanging(0), [trial(0, 2761)], True, id="had its time"),
        pytest.param(hanging(0), [trial(0, 2760)], False, id="took a place late"),
        pytest.param(apart(0), [trial(0, 2761)], False, id="waits for its next call"),
        pytest.param(apart(0), [trial(0, 5521)], True, id="waits for its next call for long"),
        pytest.param(STARTED, [trial(0, 1), trial(1, is_alive=False)], False, id="one has gone"),
        pytest.param(STARTED, [trial(0, 1, deaths=1)], False, id="has died once"),
        pytest.param(STARTED, [trial(0, 1, deaths=2)], True, id="has died twice"),
        pytest.param(STARTED, [trial(0, 1, deaths=1), trial(1, deaths=1)], True, id="two died"),
        pytest.param(STARTED.restarted(9), [trial(0, 1)], False, id="restarted before"),
    ],
)
def test_a_version_is_abandoned_as_late_if_a_canary_had_its_time_or_canaries_die_repeatedly(
    canary_worker, trials, halts
):
    given = {"phase": RolloutPhase.JUDGING, "phase_seconds": 2 * 2760 + 1, "trials": trials}
    problem = present(STEP(make_view(canary_worker, old(1), **given)).problem)

    assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
    assert problem.halt is halts


@pytest.mark.parametrize("others", [0, 1])
def test_a_worker_whose_prompts_on_the_applied_version_hang_gives_its_part_to_another(others):
    work = Operation(kind="probe", version="41", running_seconds=601)
    hangs = old(0).reporting(operation=work)
    given = {"phase": RolloutPhase.JUDGING, "phase_seconds": 1e6}
    taken = STEP(make_view(hangs, *(old(n + 1) for n in range(others)), **given))

    assert texts_of(taken.actions) == ["probe 41 on policy-1"][:others]
    problem = present(taken.problem)
    assert problem.reason is ConditionReason.DEADLINE_EXCEEDED
    assert not problem.halt
    assert ("probe 41" in problem.message) is not others


@pytest.mark.parametrize(
    ("alive", "calls"),
    [
        pytest.param([known(1), known(2), known(3)], ["stage 42 on policy-1"], id="most serve"),
        pytest.param([known(2), known(3)], [], id="half of them serve"),
        pytest.param([apart(1), known(2), known(3)], ["load 42 on policy-1"], id="one is back"),
    ],
)
def test_half_of_the_replicas_serve_while_canaries_die(alive, calls):
    """A version that kills each canary would take all workers from their clients, one after the other."""
    dead = [make_worker(n).not_running() for n in range(4 - len(alive))]
    given = {"phase": RolloutPhase.JUDGING, "replicas": 4, "phase_seconds": 1e6}
    taken = STEP(make_view(*dead, *alive, trials=[trial(0, is_alive=False)], **given))

    assert texts_of(taken.actions) == calls
    if not calls:
        problem = present(taken.problem)
        assert not problem.halt
        assert "died (policy-0)" in problem.message


@pytest.mark.parametrize("trials", [[], [trial(1)]])
def test_replicas_that_were_away_before_do_not_count_as_dead_canaries(trials):
    given = {"phase": RolloutPhase.JUDGING, "replicas": 2, "trials": trials}
    taken = STEP(make_view(make_worker(0).not_running(), known(1), **given))

    assert texts_of(taken.actions) == ["stage 42 on policy-1"]


def test_a_canary_keeps_its_part_when_a_worker_before_it_comes_back():
    taken = STEP(make_view(known(0), known(1).staged("42"), trials=[trial(1)]))

    assert texts_of(taken.actions) == ["fence on policy-1"]


@pytest.mark.parametrize(
    ("worker", "calls"),
    [
        (make_worker(2).loading("41", "40").heard(16), ["pause on policy-2"]),
        (make_worker(2).paused("40").loaded(), ["stage 41 on policy-2"]),
        (make_worker(2).paused("40").loaded().staged("41"), ["load 41 on policy-2"]),
        (make_worker(2).paused("41").loaded(), ["resume 41 on policy-2"]),
    ],
)
def test_a_worker_that_a_forgotten_barrier_holds_goes_back_during_a_judgement(worker, calls):
    """At the end of its load, or of its pause, it would close, and its requests would end."""
    step = STEP(make_view(old(0), old(1), worker))

    assert [text for text in texts_of(step.actions) if text.endswith("policy-2")] == calls


class TestPausedAtTheDesiredVersion:
    """The strategy was Synchronized, and all were paused, when it became Canary."""

    LOADED = make_worker(0).paused("42").loaded()
    BEHIND = make_worker(1).paused("41").staged("42")

    def test_the_rollout_finishes_after_the_last_load_under_way(self):
        busy = make_worker(0).loading("41", "42")

        assert texts_of(ending(busy, self.BEHIND).actions) == ["load 42 on policy-1"]

    def test_they_resume_the_old_version_if_none_has_begun_to_load_it(self):
        taken = ending(make_worker(0).paused("41").staged("42"), self.BEHIND)

        assert texts_of(taken.actions) == ["resume 41 on policy-0", "resume 41 on policy-1"]

    def test_they_go_back_if_all_have_the_next_version(self):
        workers = (self.LOADED.staged("43"), old(1).staged("43"))
        taken = ending(*workers, wants="43", transition=make_transition(back=True))

        assert "stage 41 on policy-0" in texts_of(taken.actions)

    def test_a_swap_without_a_barrier_ends_by_itself_and_the_others_are_judged(self):
        swaps = make_worker(0).loading("41", "42").doing("apply", "42")
        taken = canary.then(rolling)(make_view(swaps, old(1), forbids_mixing=False))

        assert taken.phase is RolloutPhase.JUDGING


class TestOvertaken:
    AHEAD = make_worker(0).paused("42").loaded()
    BEHIND = make_worker(1).paused("41").staged("42")
    LONG = 3 * (60 + 60 + 600)

    def test_a_worker_that_does_not_load_it_is_fenced_once_the_others_waited_long(self):
        def after(seconds: float) -> list[str]:
            taken = ending(self.AHEAD.heard(seconds), self.BEHIND, wants="43")
            return texts_of(taken.actions)

        assert "load 42 on policy-1" in after(self.LONG - 1)
        assert "fence on policy-1" in after(self.LONG)


def test_pauses_of_workers_that_load_an_overtaken_version_are_renewed():
    """A canary without renewals closes its latch after the load, and loses its requests."""
    busy = make_worker(1).loading("41", "42").heard(16)

    assert "pause on policy-1" in texts_of(ending(old(0), busy, wants="43").actions)


def test_a_silent_canary_that_has_loaded_does_not_count_as_serving():
    """Its pod is deleted and the cache is late; the other canary was not compared yet."""
    gone = loaded(1).silent().ready()
    taken = STEP(make_view(loaded(0), gone))

    assert taken.phase is RolloutPhase.JUDGING
    assert "admit 42 on policy-0" not in texts_of(taken.actions)
