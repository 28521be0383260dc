"""Work before and after a pause: the engine's processes hold bytes, and compare the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_engine import touched, untouched
from tests.support.present import present
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing

from fleet_worker.engine.records import HeldBytes
from fleet_worker.lifecycle import held_bytes, settling
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.watchdog import Watch
from fleet_worker.protocol import Phase

WORKING = HeldBytes(is_done=False, line="pageable: not ready yet")
PINNED = HeldBytes(is_done=True, line="pinned")


@pytest.fixture
async def watched(serving: WorkerHarness) -> AsyncIterator[WorkerHarness]:
    """A serving worker that watches itself."""
    watch = Watch(
        serving.agent, silence_seconds=60, load_seconds=60, end_process=serving.ended.append
    )
    task = asyncio.create_task(watch.run())
    yield serving
    task.cancel()


def last_held(harness: WorkerHarness) -> str | None:
    return harness.engine.held[-1]


async def settled(harness: WorkerHarness) -> None:
    await soon(lambda: not harness.agent.unsettled.is_set())
    await soon(lambda: not harness.agent.lock.locked())


async def test_a_stage_answers_once_the_engine_holds_the_bytes_and_the_state_tells_how(
    serving: WorkerHarness,
) -> None:
    serving.engine.holds = [WORKING, PINNED]
    path = await serving.stage("1")

    assert serving.engine.held == [str(path), str(path)]
    assert serving.engine.samples == [True, True], "the pause takes no sample of the model"
    assert present(serving.state.staged).copies == "pinned"


async def test_the_memory_of_a_dropped_version_is_free_before_the_next_one_is_read(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    second = await serving.stage("2")

    assert serving.engine.held[-2:] == [None, str(second)]


async def test_a_stage_succeeds_if_the_engine_holds_nothing_and_the_watch_tries_again(
    watched: WorkerHarness,
) -> None:
    watched.engine.failures["hold"] = [untouched(), untouched()]
    path = await watched.stage("1")

    assert (present(watched.state.staged).copies or "").startswith("pageable")
    await settled(watched)
    assert last_held(watched) == str(path)
    assert watched.state.staged is not None
    assert present(watched.state.staged).copies == "pageable: a fake"


async def test_a_load_begins_while_the_engine_still_maps_the_bytes(serving: WorkerHarness) -> None:
    gate = serving.engine.gates["hold"] = asyncio.Event()
    gate.set()
    first = await serving.stage("1")
    serving.engine.holds = [WORKING] * 1000
    staging = asyncio.create_task(serving.stage("1", first))
    await soon(lambda: len(serving.engine.holds) < 1000)
    await serving.apply("1")
    await staging

    assert serving.state.version == "1"
    assert serving.engine.holds, "the stage ended as soon as the version was loaded"


async def test_a_pause_has_neither_the_comparison_nor_the_unmapping(watched: WorkerHarness) -> None:
    await watched.staged_in_a_pause("1")
    held = len(watched.engine.held)
    await watched.load("1")
    await settling.settle(watched.agent)

    assert len(watched.engine.held) == held
    assert watched.state.effect is not None
    assert (watched.state.effect.changed_share, watched.state.effect.version) == (None, "1")
    assert watched.state.effect.why_not

    await watched.resume("1")
    await settled(watched)
    assert last_held(watched) is None
    assert watched.state.effect.changed_share == 0.25
    assert watched.state.effect.why_not == ""


async def test_the_next_staged_version_stays_held_after_a_load(watched: WorkerHarness) -> None:
    await watched.loaded_in_a_pause("1")
    second = await watched.stage("2")
    await watched.resume("1")
    await settled(watched)

    assert last_held(watched) == str(second)
    assert present(watched.state.staged).copies == "pageable: a fake"


async def test_a_failed_load_is_let_go_behind_the_closed_latch(watched: WorkerHarness) -> None:
    await watched.stage("1")
    watched.engine.failures["probe"] = [touched()]
    await failing(watched.apply("1"))

    state = watched.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert watched.engine.paused
    await settled(watched)
    assert last_held(watched) is None
    assert watched.state.effect is None, "the version before was loaded again"


async def test_a_load_that_is_refused_keeps_the_bytes_for_the_next_try(
    watched: WorkerHarness,
) -> None:
    path = await watched.stage("1")
    watched.engine.failures["load"] = [untouched()]
    await failing(watched.apply("1"))
    await settled(watched)

    assert last_held(watched) == str(path)
    await watched.apply("1")
    assert watched.state.version == "1"


async def test_the_end_of_a_lease_and_a_fence_let_go_too(watched: WorkerHarness) -> None:
    await watched.stage("1")
    await watched.pause(lease=30)
    await watched.load("1")
    watched.clock.advance(31)
    watched.agent.changed.set()
    await settled(watched)
    assert (watched.state.phase, last_held(watched)) == (Phase.JOINING, None)

    await watched.stage("2")
    await watched.load("2")
    await watched.fence()
    await settled(watched)
    assert last_held(watched) is None


async def test_a_paused_worker_that_stages_again_lets_go_first(serving: WorkerHarness) -> None:
    await serving.loaded_in_a_pause("1")
    before = len(serving.engine.held)
    second = await serving.stage("2")

    assert serving.engine.held[before:] == [None, str(second)]


async def test_a_stage_during_a_load_does_not_wait_for_the_engine(watched: WorkerHarness) -> None:
    await watched.stage("1")
    gate = watched.engine.gates["load"] = asyncio.Event()
    applying = asyncio.create_task(watched.apply("1"))
    await soon(lambda: watched.state.phase is Phase.LOADING)
    before = len(watched.engine.held)
    second = await watched.stage("2")

    assert len(watched.engine.held) == before
    gate.set()
    await applying
    await settled(watched)
    assert last_held(watched) == str(second)


async def test_a_change_of_weights_that_begins_while_the_engine_lets_go_keeps_the_bytes_for_a_restore(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    await serving.apply("1")
    good = serving.agent.good
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", good.checkpoint.size_bytes + 10)
    gate = serving.engine.gates["hold"] = asyncio.Event()
    before = len(serving.engine.held)
    staging = asyncio.create_task(serving.stage("2"))
    await soon(lambda: len(serving.engine.held) > before)
    await serving.pause()
    serving.agent.enter(Event.LOAD)  # as an update over a collective does
    gate.set()
    await staging

    assert good.checkpoint.held
    assert present(serving.state.staged).in_memory is False, "there is no room for it now"


async def test_a_stage_does_not_wait_for_an_engine_that_holds_nothing(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    await serving.apply("1")
    await settling.settle(serving.agent)
    serving.engine.gates["hold"] = asyncio.Event()  # it is frozen
    staging = asyncio.create_task(serving.stage("2"))
    await soon(lambda: serving.state.staged is not None)

    assert present(serving.state.staged).version == "2"
    staging.cancel()


async def test_memory_that_the_engine_does_not_let_go_of_is_not_free(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_bytes, "_HOLD_SECONDS", 0.05)
    await serving.stage("1")
    assert serving.state.staged is not None
    assert serving.state.staged.in_memory
    rules, size = serving.agent.staging.rules, serving.state.staged.size_bytes
    object.__setattr__(rules, "budget_bytes", size + 10)
    serving.engine.holds = [WORKING] * 1000
    await serving.stage("2")

    assert serving.state.staged.version == "2"
    assert not serving.state.staged.in_memory


@pytest.mark.parametrize(("seconds", "most_calls"), [(0.04, 2), (1, 10), (10, 25), (100, 120)])
def test_the_worker_asks_an_engine_that_works_long_less_often(
    seconds: float, most_calls: int
) -> None:
    ends, calls = virtual_time.START_SECONDS + seconds, list[float]()

    async def hold(*_: object, **__: object) -> HeldBytes:
        calls.append(virtual_time.now())
        return PINNED if calls[-1] >= ends else WORKING

    engine: Any = SimpleNamespace(hold=hold)
    assert virtual_time.run(held_bytes.HeldByEngine(engine).hold(None, lambda: True)) == "pinned"
    assert len(calls) <= most_calls
    assert calls[-1] <= ends + min(1, 0.25 * seconds + 0.05)


@pytest.mark.parametrize("compares", [False, True])
async def test_a_comparison_has_time_of_its_own_by_the_size_of_the_version(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch, *, compares: bool
) -> None:
    await serving.stage("1")
    staged = present(serving.agent.staging.staged)
    checkpoint = staged.checkpoint
    monkeypatch.setattr(held_bytes, "_HOLD_SECONDS", 0.05)
    monkeypatch.setattr(held_bytes, "_COMPARE_SECONDS_PER_BYTE", 60 / checkpoint.size_bytes)
    serving.engine.holds = [WORKING] * 3 + [PINNED]
    held = held_bytes.HeldByEngine(serving.engine)
    holding = held.hold(checkpoint, lambda: True, checkpoint if compares else None)
    if compares:
        assert await holding == "pinned"
    else:
        await failing(holding)


async def test_what_a_load_maps_while_the_engine_lets_go_counts_as_held(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    staged = present(serving.agent.staging.staged)
    gate = serving.engine.gates["hold"] = asyncio.Event()
    before = len(serving.engine.held)
    held = held_bytes.HeldByEngine(serving.engine)
    held.note(staged.checkpoint)
    letting_go = asyncio.create_task(held.hold(None, lambda: True))
    await soon(lambda: len(serving.engine.held) > before)
    held.note(staged.checkpoint)
    gate.set()
    await letting_go

    assert held.size_beside(None) == staged.checkpoint.size_bytes
    assert held.size_beside(staged.checkpoint) == 0


async def test_a_second_load_before_the_comparison_is_compared_with_the_first(
    serving: WorkerHarness,
) -> None:
    await serving.loaded_in_a_pause("1")
    await serving.stage("2")
    await serving.load("2")
    await serving.resume("2")
    await settling.settle(serving.agent)

    effect = present(serving.state.effect)
    assert (effect.version, effect.compared_with, effect.changed_share) == ("2", "1", 0.25)


async def test_a_load_that_is_refused_changes_nothing_about_the_comparison_before(
    serving: WorkerHarness,
) -> None:
    await serving.loaded_in_a_pause("1")
    await serving.stage("2")
    serving.engine.failures["load"] = [untouched()]
    await failing(serving.load("2"))
    await serving.resume("1")
    await settling.settle(serving.agent)

    effect = present(serving.state.effect)
    assert (effect.version, effect.changed_share, effect.why_not) == ("1", 0.25, "")


async def test_a_load_that_fails_leaves_no_comparison_with_other_weights(
    serving: WorkerHarness,
) -> None:
    await serving.loaded_in_a_pause("1")
    await serving.stage("2")
    serving.engine.failures["load"] = [touched()]
    await failing(serving.load("2"))
    await settling.settle(serving.agent)

    effect = present(serving.state.effect)
    assert (effect.version, effect.changed_share) == ("1", None)
    assert "before the comparison" in effect.why_not


async def test_the_engine_keeps_what_it_holds_once_weights_change(serving: WorkerHarness) -> None:
    serving.engine.holds = [WORKING] * 1000
    letting_go = asyncio.create_task(settling.make_ready(serving.agent))
    await soon(lambda: len(serving.engine.holds) < 1000)
    await serving.pause()
    serving.agent.enter(Event.LOAD)  # as an update over a collective does
    await letting_go

    assert serving.engine.holds


async def test_a_comparison_that_fails_leaves_its_reason(watched: WorkerHarness) -> None:
    watched.engine.failures["compare"] = [untouched()]
    await watched.stage("1")
    await watched.apply("1")
    await settled(watched)

    assert "could not begin" in present(watched.state.effect).why_not
    await watched.stage("2")
    await watched.apply("2")
    await settled(watched)
    assert present(watched.state.effect).changed_share == 0.25
