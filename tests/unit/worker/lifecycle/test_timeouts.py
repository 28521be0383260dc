"""An engine or file system that hangs blocks no fence and no expiry of a lease."""

from __future__ import annotations

import asyncio
import errno
import inspect
import threading
from collections.abc import Iterator

import pytest
from tests.support.waiting import soon
from tests.support.worker_harness import (
    HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    refused,
    running,
    watchdog_of,
)

from fleet_worker.checkpoint import opening, store_threads
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.store_threads import StoreThreads
from fleet_worker.engine.limits import Limits
from fleet_worker.engine.port import LIMITS, Engine
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import HuggingFaceSource, Phase, Reason, Source, StageRequest
from fleet_worker.trainer.transfers import TransferRoom

SHORT = 0.02
LONG = 60.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_worker.lifecycle.quiesce._PATIENCE_SECONDS", SHORT)


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """A file system that hangs until the test ends."""
    event = threading.Event()
    yield event
    event.set()


def limit(harness: WorkerHarness, **seconds: float) -> None:
    harness.agent.limits = Limits(**seconds)
    harness.agent.engine._limits = harness.agent.limits


def test_every_call_of_the_engine_has_a_limit_or_a_caller_that_sets_one() -> None:
    calls = {name for name, each in vars(Engine).items() if inspect.iscoroutinefunction(each)}

    assert LIMITS.keys() < calls
    assert calls - LIMITS.keys() == {"drain", "models", "ping", "sample", "score"}


async def test_work_that_blocks_is_left_behind(hanging: threading.Event) -> None:
    threads = StoreThreads()
    assert await threads.run(lambda: 7) == 7
    refusal = await refused(threads.run(hanging.wait, within_seconds=SHORT))
    assert refusal.reason is Reason.SOURCE_UNREADABLE
    with pytest.raises(KeyError):
        await threads.run(lambda: {}["x"])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT], ids=["EIO", "ENOENT"])
async def test_an_error_of_the_file_system_is_a_refusal_that_names_the_store(code: int) -> None:
    def work() -> None:
        raise OSError(code, "it failed")

    refusal = await refused(StoreThreads().run(work, store="/weights"))

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "/weights" in refusal.message
    assert errno.errorcode[code] in refusal.message


async def test_a_hanging_hugging_face_cache_keeps_no_directory_from_being_staged(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch, hanging: threading.Event
) -> None:
    monkeypatch.setattr(store_threads, "_LEFT_FOR_SECONDS", 0.0)
    monkeypatch.setattr(opening, "commit_of", lambda *_: hanging.wait())
    source = Source(hugging_face=HuggingFaceSource(repo="org/name", revision="main"))
    with monkeypatch.context() as silent:
        silent.setattr(store_threads.Pulse, "silent_seconds", 1000.0)
        for _ in range(5):
            request = StageRequest(version="hub", source=source, epoch=serving.epoch())
            refusal = await refused(serving.agent.stage(request))
            assert refusal.reason is Reason.SOURCE_UNREADABLE
            assert "Hugging Face cache" in refusal.message
    await serving.stage("1")

    assert serving.state.staged is not None
    assert serving.state.staged.version == "1"


async def test_hanging_files_do_not_use_up_the_threads_of_others(hanging: threading.Event) -> None:
    threads = StoreThreads()
    for number in range(50):
        await refused(threads.run(hanging.wait, store=str(number), within_seconds=0.001))

    assert await asyncio.to_thread(lambda: 7) == 7


async def test_a_fence_overtakes_a_hanging_pause(serving: WorkerHarness) -> None:
    limit(serving, control_seconds=SHORT)
    serving.engine.gates["pause keep"] = asyncio.Event()
    pause = asyncio.create_task(serving.pause())
    await soon(lambda: serving.engine.calls == ["pause keep"])
    await serving.fence()

    with pytest.raises(EngineFailure, match=r"did not answer .*: pause"):
        await pause
    assert serving.agent.is_idle


async def test_a_fence_shortens_the_timeout_of_a_hanging_load(serving: WorkerHarness) -> None:
    limit(serving, load_seconds=LONG, cut_seconds=SHORT)
    await serving.staged_in_a_pause("1")
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    fence = asyncio.create_task(serving.fence())
    await soon(load.done)
    await failing(load)
    await fence

    # The engine does not load the last good version either.
    assert serving.ended
    assert serving.state.phase is Phase.BROKEN


async def test_a_load_that_hangs_forever_ends_the_process_with_both_reasons(
    serving: WorkerHarness,
) -> None:
    """The engine reads from a store that hangs: neither the new version nor the last one goes in."""
    limit(serving, control_seconds=LONG, load_seconds=SHORT)
    await serving.staged_in_a_pause("1")
    serving.engine.gates["load"] = asyncio.Event()
    await failing(asyncio.wait_for(serving.load("1"), timeout=5))

    (why,) = serving.ended
    assert "did not answer" in why
    assert "base could not be loaded again" in why
    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.BROKEN, False, None)
    assert state.load_failure is not None
    assert (state.load_failure.version, state.load_failure.reason) == ("1", Reason.ENGINE_FAILED)


async def test_a_load_has_no_short_timeout_while_no_fence_waits(serving: WorkerHarness) -> None:
    limit(serving, control_seconds=SHORT, cut_seconds=SHORT, load_seconds=LONG)
    await serving.staged_in_a_pause("1")
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    await asyncio.wait({load}, timeout=4 * SHORT)
    assert not load.done()
    serving.engine.gates["load"].set()
    await load


async def test_the_expiry_of_a_lease_overtakes_a_hanging_engine(serving: WorkerHarness) -> None:
    limit(serving, control_seconds=SHORT)
    await serving.pause(lease=10)
    serving.engine.running = 1
    serving.clock.advance(11)
    serving.engine.gates["resume"] = asyncio.Event()
    await failing(serving.agent.expire_lease())
    assert serving.engine.paused
    del serving.engine.gates["resume"]
    await serving.agent.expire_lease()

    assert serving.state.phase is Phase.SERVING


async def hanging_load(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Task[None]:
    """A load of a version that is not in memory, and whose store hangs, under a lease of 10 s."""
    with monkeypatch.context() as no_memory:
        no_memory.setattr(Checkpoint, "read_all", lambda *_, **__: False)
        await harness.stage("1")
    staged = harness.agent.staging.staged
    assert staged is not None
    assert not staged.in_memory
    await harness.pause(lease=10)
    harness.engine.running = 1
    harness.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(harness.load("1"))
    await soon(lambda: f"load {staged.checkpoint.path}" in harness.engine.calls)
    return load


async def test_the_end_of_a_lease_ends_a_load_whose_store_hangs(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(serving, load_seconds=LONG, cut_seconds=SHORT, overdue_seconds=100)
    load = await hanging_load(serving, monkeypatch)
    serving.clock.advance(10 + 100)
    await asyncio.wait_for(serving.agent.expire_lease(), timeout=5)

    with pytest.raises(EngineFailure, match="did not answer"):
        await load
    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.BROKEN, False, None)
    assert serving.engine.running == 0
    assert serving.ended, "the engine may still write parts of the version"
    assert state.lease_expiries == 1


async def test_a_load_that_ends_with_its_lease_leaves_the_last_good_version_and_full_timeouts(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(serving, load_seconds=LONG, cut_seconds=SHORT, overdue_seconds=100)
    load = await hanging_load(serving, monkeypatch)
    gate = serving.engine.gates["load"]
    reach = serving.agent.quiescence.reach

    async def answers_again(engine: Engine) -> None:
        gate.set()
        await reach(engine)

    monkeypatch.setattr(serving.agent.quiescence, "reach", answers_again)
    serving.clock.advance(10 + 100)
    await serving.agent.expire_lease()
    await failing(load)

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert (serving.ended, serving.engine.paused, serving.engine.running) == ([], True, 0)
    assert not serving.agent.overdue.is_set()


async def test_a_load_that_succeeds_after_its_lease_waits_for_the_operator(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(serving, load_seconds=LONG, cut_seconds=LONG, overdue_seconds=100)
    load = await hanging_load(serving, monkeypatch)
    serving.clock.advance(10 + 100)
    expiry = asyncio.create_task(serving.agent.expire_lease())
    await soon(serving.agent.overdue.is_set)
    serving.engine.gates["load"].set()
    await asyncio.gather(load, expiry)

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "1")
    assert state.lease_expiries == 1


async def test_a_load_may_outlive_its_lease_while_the_operator_changes_its_leader(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that takes over within 130 s renews the lease. Nothing abandons a good version for it."""
    limit(serving, load_seconds=LONG, cut_seconds=SHORT / 10, overdue_seconds=SHORT / 10)
    load = await hanging_load(serving, monkeypatch)
    async with running(watchdog_of(serving)):
        serving.clock.advance(10)
        await soon(lambda: waits_for_the_lock(serving))
        await serving.pause(lease=10)
        serving.clock.advance(9)
        await asyncio.wait({load}, timeout=4 * SHORT)
        assert not load.done()
        serving.engine.gates["load"].set()
        await load
        assert serving.state.phase is Phase.PAUSED
    assert serving.state.lease_expiries == 0


async def test_the_lease_of_an_apply_ends_no_load(serving: WorkerHarness) -> None:
    """It resumes by itself, and the operator does not renew its lease."""
    limit(serving, load_seconds=LONG, cut_seconds=SHORT, overdue_seconds=0)
    await serving.stage("1")
    serving.engine.gates["load"] = asyncio.Event()
    applied = asyncio.create_task(serving.apply("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    serving.clock.advance(1000)
    expiry = asyncio.create_task(serving.agent.expire_lease())
    await asyncio.wait({applied, expiry}, timeout=4 * SHORT)
    assert not applied.done()
    serving.engine.gates["load"].set()
    await asyncio.gather(applied, expiry)

    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "1")


async def test_the_end_of_a_lease_ends_a_transfer_that_hangs(serving: WorkerHarness) -> None:
    limit(serving, load_seconds=LONG, cut_seconds=SHORT, overdue_seconds=100)
    collective = TrainerHarness.of(serving, room=TransferRoom("fake")).collective
    await collective.join_transfer(HOLDER, {})
    await collective.begin_transfer(HOLDER)
    serving.engine.gates["receive"] = asyncio.Event()
    receive = asyncio.create_task(collective.receive(HOLDER, {}))
    await soon(lambda: "receive" in serving.engine.calls)
    serving.clock.advance(60 + 100)
    await asyncio.wait_for(serving.agent.expire_lease(), timeout=5)

    with pytest.raises(EngineFailure, match="receive"):
        await receive
    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")


def waits_for_the_lock(harness: WorkerHarness) -> bool:
    return bool(harness.agent.lock._waiters)


@pytest.mark.parametrize(
    ("store", "remedy"),
    [
        ("/weights", "mount"),
        ("of the Hugging Face cache", "mount"),
        ("s3://weights/run", "address"),
        ("peer://10.0.0.1:8003", "address"),
    ],
)
async def test_a_store_that_does_not_answer_has_the_remedy_of_its_kind(
    hanging: threading.Event, store: str, remedy: str
) -> None:
    with pytest.raises(Refusal, match=f"check .*{remedy}"):
        await StoreThreads().run(hanging.wait, store=store, within_seconds=SHORT)
