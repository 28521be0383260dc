"""Probing: what prompts say about a version, and what it leaves of the worker."""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.probing import (
    Continuation,
    Position,
    Run,
    divergence,
    repetition,
    report,
)
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import Phase, Reason


def certain(token: int, probability: float) -> Position:
    return Position(token, {token: math.log(probability)})


def run_of(version: str, *positions: Position) -> Run:
    return Run(version, (Continuation((1,), positions),))


# --- what it says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([1, 2, 3], 0, id="too short to repeat"),
        pytest.param([1, 2, 3, 4], 0, id="once is no repetition"),
        pytest.param(list(range(40)), 0, id="no repetition"),
        pytest.param([7] * 20, 1, id="one token over and over"),
        pytest.param([1, 2] * 10, 9 / 17, id="two tokens in turn"),
    ],
)
def test_repetition_is_the_share_of_the_most_frequent_four_tokens(
    tokens: list[int], share: float
) -> None:
    assert repetition(tokens) == pytest.approx(share)


def test_a_distribution_does_not_diverge_from_itself() -> None:
    position = Position(1, {1: math.log(0.5), 2: math.log(0.3)})

    assert divergence(position, position) == pytest.approx(0, abs=1e-9)


def test_a_divergence_is_that_of_the_known_tokens_and_all_others_together() -> None:
    old = Position(1, {1: math.log(0.5), 2: math.log(0.3), 3: math.log(0.1)})
    new = Position(1, {1: math.log(0.2), 2: math.log(0.6)})
    expected = 0.5 * math.log(0.5 / 0.2) + 0.3 * math.log(0.3 / 0.6) + 0.2 * math.log(0.2 / 0.2)

    assert divergence(old, new) == pytest.approx(expected)


def test_a_divergence_of_certainties_stays_finite() -> None:
    sure = Position(1, {1: 0.0, 2: -math.inf})
    impossible = Position(1, {1: -60.0})

    assert 20 < divergence(sure, impossible) < 100


def test_a_report_without_a_baseline_compares_nothing() -> None:
    told = report(run_of("1", certain(5, 0.5)), None, ())

    assert (told.version, told.compared_with, told.finite) == ("1", None, True)
    assert (told.logprob_drift, told.kl, told.tokens) == (None, None, 0)


def test_a_report_compares_the_tokens_of_the_baseline() -> None:
    old = run_of("1", certain(5, 0.5), certain(6, 0.5))
    told = report(run_of("2"), old, [(certain(5, 0.25), certain(6, 0.5))])

    assert (told.compared_with, told.tokens) == ("1", 2)
    assert told.logprob_drift == pytest.approx(math.log(2) / 2)
    assert told.kl is not None
    assert told.kl > 0


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_what_is_no_number_is_said_and_not_averaged(value: float) -> None:
    old = run_of("1", certain(5, 0.5), certain(6, 0.5))
    told = report(run_of("2"), old, [(Position(5, {5: value}), certain(6, 0.5))])

    assert not told.finite
    assert (told.logprob_drift, told.tokens) == (0, 1)


def test_a_missing_log_probability_is_no_number() -> None:
    assert not report(run_of("1", Position(5, {6: -1.0})), None, ()).finite


# --- what it does -------------------------------------------------------------------------------


async def test_a_serving_worker_is_probed_beside_its_clients(serving: Bench) -> None:
    told = await serving.probe("one", "three")

    assert told is not None
    assert (told.version, told.compared_with) == ("base", None)
    assert "resume" not in serving.engine.calls
    assert not serving.engine.paused


async def test_the_next_version_is_compared_behind_its_latch(serving: Bench) -> None:
    serving.engine.logprobs = {"1": -3.0}
    await serving.probe()
    await serving.stage("1")
    await serving.fence()
    await serving.load("1")
    told = await serving.probe()

    assert told is not None
    assert (told.version, told.compared_with, told.logprob_drift) == ("1", "base", 2.0)
    assert serving.state.phase is Phase.JOINING
    assert serving.engine.paused


async def test_a_version_probed_again_is_compared_with_the_same_baseline(serving: Bench) -> None:
    await serving.probe()
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    await serving.resume("1")
    await serving.probe()
    again = await serving.probe()

    assert again is not None
    assert (again.version, again.compared_with) == ("1", "base")


async def test_a_paused_worker_is_not_probed(serving: Bench) -> None:
    await serving.pause()
    with pytest.raises(Refusal) as refusal:
        await serving.probe()

    assert refusal.value.reason is Reason.WRONG_PHASE


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.JOINING])
async def test_a_fence_does_not_wait_for_a_probe(joining: Bench, phase: Phase) -> None:
    if phase is Phase.SERVING:
        await joining.admit("base")
    joining.engine.gates["sample"] = asyncio.Event()
    probing = asyncio.ensure_future(joining.probe())
    await soon(lambda: "sample x" in joining.engine.calls)
    await joining.fence()

    with pytest.raises(Refusal) as refusal:
        await probing
    assert refusal.value.reason is Reason.WRONG_PHASE
    assert joining.state.phase is Phase.JOINING
    assert joining.engine.paused
    assert joining.state.probe is None


async def test_a_probe_that_fails_leaves_a_joining_worker_at_rest(joining: Bench) -> None:
    joining.engine.failures["score"] = [untouched()]
    with pytest.raises(EngineFailure):
        await joining.probe()

    assert joining.engine.paused
    assert joining.state.phase is Phase.JOINING
    await joining.admit("base")


# --- fencing with time to finish ----------------------------------------------------------------


async def test_a_fence_with_time_lets_requests_end(serving: Bench) -> None:
    serving.agent.quiescence.inside = 1
    fencing = asyncio.ensure_future(serving.fence(drain=60))
    await soon(lambda: serving.state.phase is Phase.PAUSING)
    assert not serving.agent.is_open
    assert serving.engine.calls == []

    serving.agent.quiescence.inside = 0
    await fencing
    assert serving.state.phase is Phase.JOINING
    assert serving.engine.calls == ["pause abort"]


async def test_a_fence_whose_time_is_over_ends_what_still_runs(serving: Bench) -> None:
    serving.agent.quiescence.inside = 1
    serving.engine.running = 1
    fencing = asyncio.ensure_future(serving.fence(drain=0.01))
    await soon(lambda: "pause abort" in serving.engine.calls)
    serving.agent.quiescence.inside = 0
    await fencing

    assert serving.engine.running == 0
    assert serving.state.phase is Phase.JOINING


async def test_a_fence_at_once_overtakes_one_with_time_and_the_same_again_does_not(
    serving: Bench,
) -> None:
    serving.agent.quiescence.inside = 1
    slow = asyncio.ensure_future(serving.fence(drain=60))
    await soon(lambda: serving.state.phase is Phase.PAUSING)
    again = asyncio.ensure_future(serving.fence(drain=60))
    await asyncio.sleep(0)
    assert not slow.done()

    at_once = asyncio.ensure_future(serving.fence())
    await soon(lambda: "pause abort" in serving.engine.calls)
    serving.agent.quiescence.inside = 0
    await asyncio.gather(slow, again, at_once)
    assert serving.state.phase is Phase.JOINING


async def test_a_pause_after_a_fence_with_time_drains_again(serving: Bench) -> None:
    await serving.fence(drain=5)
    await serving.admit("base")

    assert not serving.agent.cut.is_set()
