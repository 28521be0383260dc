"""Canary prompts: their report on a version, and their effect on the worker."""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.support.fake_engine import untouched
from tests.support.present import present
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing, refused

from fleet_worker.lifecycle.canary_report import (
    Answers,
    Continuation,
    History,
    Position,
    WeightsName,
    divergence,
    repetition,
    report,
)
from fleet_worker.protocol import Phase, Reason


def certain(token: int, probability: float) -> Position:
    return Position(token, {token: math.log(probability)})


def answers_of(version: str, *positions: Position) -> Answers:
    return Answers(version, (Continuation((1,), positions),))


# --- what it says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([1, 2, 3], 0, id="too short to repeat"),
        pytest.param([1, 2, 3, 4], 0, id="once is not a repetition"),
        pytest.param(list(range(40)), 0, id="no repetition"),
        pytest.param([7] * 5, 1, id="the shortest repetition"),
        pytest.param([7] * 20, 1, id="one token over and over"),
        pytest.param([1, 2] * 10, 9 / 17, id="two tokens in turn"),
    ],
)
def test_repetition_is_the_share_of_the_most_frequent_four_tokens(
    tokens: list[int], share: float
) -> None:
    assert repetition(tokens) == pytest.approx(share)


def test_the_divergence_counts_known_tokens_and_the_rest_together() -> None:
    old = Position(1, {1: math.log(0.5), 2: math.log(0.3), 3: math.log(0.1)})
    new = Position(1, {1: math.log(0.2), 2: math.log(0.6)})
    expected = 0.5 * math.log(0.5 / 0.2) + 0.3 * math.log(0.3 / 0.6) + 0.2 * math.log(0.2 / 0.2)

    assert divergence(old, new) == pytest.approx(expected)


def test_a_report_without_a_baseline_has_no_comparison() -> None:
    reported = report(answers_of("1", certain(5, 0.5)), None, ())

    assert (reported.version, reported.compared_with, reported.finite) == ("1", None, True)
    assert (reported.logprob_drift, reported.kl, reported.tokens) == (None, None, 0)


def test_a_report_compares_the_baselines_tokens() -> None:
    old = answers_of("1", certain(5, 0.5), certain(6, 0.5))
    reported = report(answers_of("2"), old, [(certain(5, 0.25), certain(6, 0.5))])

    assert (reported.compared_with, reported.tokens) == ("1", 2)
    assert reported.logprob_drift == pytest.approx(math.log(2) / 2)
    assert reported.kl is not None
    assert reported.kl > 0


def test_a_missing_log_probability_counts_as_nan() -> None:
    assert not report(answers_of("1", Position(5, {6: -1.0})), None, ()).finite


# --- what it does -------------------------------------------------------------------------------


async def test_canary_prompts_run_together_with_the_clients_of_a_serving_worker(
    serving: WorkerHarness,
) -> None:
    reported = present(await serving.run_prompts("one", "three"))

    assert (reported.version, reported.compared_with) == ("base", None)
    assert "resume" not in serving.engine.calls
    assert not serving.engine.paused


async def test_canary_prompts_run_on_a_joining_worker_behind_its_closed_latch(
    serving: WorkerHarness,
) -> None:
    serving.engine.logprobs = {"1": -3.0}
    await serving.run_prompts()
    await serving.stage("1")
    await serving.fence()
    await serving.load("1")
    reported = present(await serving.run_prompts())

    assert (reported.version, reported.compared_with, reported.logprob_drift) == ("1", "base", 2.0)
    assert serving.state.phase is Phase.JOINING
    assert serving.engine.paused


async def test_a_repeated_run_is_compared_with_the_same_baseline(serving: WorkerHarness) -> None:
    await serving.run_prompts()
    await serving.swap("1")
    await serving.run_prompts()
    again = present(await serving.run_prompts())

    assert (again.version, again.compared_with) == ("1", "base")


async def test_a_version_is_compared_with_the_named_weights_and_not_with_refused_ones(
    serving: WorkerHarness,
) -> None:
    await serving.run_prompts()
    await serving.fence()
    for version in ("1", "2"):
        await serving.stage(version)
        await serving.load(version)
        reported = present(await serving.run_prompts(compare_with="base"))

        assert (reported.version, reported.compared_with) == (version, "base")


async def test_a_report_stays_after_a_load_of_another_run_with_the_same_number(
    serving: WorkerHarness,
) -> None:
    """Without it a canary would load the baseline again, and the version again, without an end."""
    await serving.run_prompts()
    await serving.fence()
    await serving.stage("base", run_id="another-run")
    await serving.load("base", run_id="another-run")

    assert present(serving.state.probe).run_id is None
    reported = present(await serving.run_prompts(compare_with="base"))
    assert (reported.run_id, reported.compared_with_run_id) == ("another-run", None)
    assert reported.compared_with == "base"


@pytest.mark.parametrize(
    ("loaded", "stays"),
    [
        pytest.param(("1", "run", "sha256:a"), True, id="the same weights again"),
        pytest.param(("1", "run", "sha256:b"), False, id="other files"),
        pytest.param(("1", "run", None), False, id="weights without a digest"),
        pytest.param(("1", "other", "sha256:b"), True, id="of another run"),
        pytest.param(("2", "run", "sha256:b"), True, id="another version"),
    ],
)
def test_a_report_on_other_weights_of_the_same_name_is_forgotten(
    loaded: WeightsName, *, stays: bool
) -> None:
    """The operator may not know the digests, and would take it for a report on these weights."""
    history = History()
    answers = Answers("1", (), run_id="run", digest="sha256:a")
    history.report = report(answers, None, ())
    history.note_loaded(loaded)

    assert (history.report is not None) is stays


@pytest.mark.parametrize(
    ("named", "compared_with"),
    [
        pytest.param(("1", "run", "sha256:a"), "1", id="version, run and digest agree"),
        pytest.param(("1", "run", None), "1", id="the digest is not known"),
        pytest.param(("1", "other", "sha256:a"), None, id="of another run"),
        pytest.param(("1", "run", "sha256:b"), None, id="with another digest"),
    ],
)
def test_the_baseline_is_the_run_on_the_named_weights(
    named: WeightsName, compared_with: str | None
) -> None:
    history = History()
    history.note(Answers("1", (), run_id="run", digest="sha256:a"), named)
    history.note(answers_of("2"), named)

    baseline = history.note(answers_of("3"), named)

    assert (baseline.version if baseline else None) == compared_with


async def test_a_paused_worker_refuses_canary_prompts(serving: WorkerHarness) -> None:
    await serving.pause()
    refusal = await refused(serving.run_prompts())

    assert refusal.reason is Reason.WRONG_PHASE


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.JOINING])
async def test_a_fence_does_not_wait_for_canary_prompts(
    joining: WorkerHarness, phase: Phase
) -> None:
    if phase is Phase.SERVING:
        await joining.admit("base")
    joining.engine.gates["sample"] = asyncio.Event()
    running = asyncio.ensure_future(joining.run_prompts())
    await soon(lambda: "sample x" in joining.engine.calls)
    await joining.fence()

    assert (await refused(running)).reason is Reason.WRONG_PHASE
    assert joining.state.phase is Phase.JOINING
    assert joining.engine.paused
    assert joining.state.probe is None


async def test_a_failed_run_of_canary_prompts_leaves_a_joining_worker_idle(
    joining: WorkerHarness,
) -> None:
    joining.engine.failures["score"] = [untouched()]
    await failing(joining.run_prompts())

    assert joining.engine.paused
    assert joining.state.phase is Phase.JOINING
    await joining.admit("base")
