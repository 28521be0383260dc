"""After failures and refusals the worker reports and holds nothing outdated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import touched, untouched
from tests.support.present import present
from tests.support.tiny import BASE_DIGEST, write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, WorkerHarness, failing, refused

from fleet_worker.protocol import AdapterRemoval, AdapterRequest, PauseMode, Phase, Reason, Source
from fleet_worker.trainer.transfers import TransferRoom


@pytest.fixture
async def trainer(serving: WorkerHarness) -> TrainerHarness:
    """A driver that may send files, and weights over a collective."""
    return TrainerHarness.of(serving, room=TransferRoom("own"))


def step(harness: WorkerHarness, number: int, value: float = 1.0) -> str:
    return str(write_tiny(harness.root / f"step_{number}", value))


# --- updates over a collective ----------------------------------------------------------------------


async def test_during_an_update_no_version_is_reported(trainer: TrainerHarness) -> None:
    await trainer.begin_update()
    state = trainer.harness.state

    assert (state.version, state.source) == (None, None), "half of one and half of another"
    await trainer.collective.end_transfer(HOLDER, "7")
    assert trainer.harness.state.version == "7"


async def test_an_update_under_a_trainers_pause_keeps_that_pause(trainer: TrainerHarness) -> None:
    harness = trainer.harness
    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=True)
    harness.clock.advance(20)
    await trainer.begin_update()
    pause = present(harness.state.pause)

    assert pause.cache_kept, "what the trainer wants to keep is kept"
    assert pause.paused_seconds == 20


async def test_files_loaded_after_a_failed_update_are_reported_as_files(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    await trainer.begin_update()
    harness.engine.failures["receive"] = [touched()]
    await failing(trainer.collective.receive(HOLDER, {}))
    gate = harness.engine.gates["load"] = asyncio.Event()
    loading = asyncio.create_task(trainer.files.load(HOLDER, step(harness, 5)))
    await soon(lambda: any(call.endswith("step_5") for call in harness.engine.calls))

    assert harness.state.phase is Phase.LOADING
    assert present(trainer.transfers.state).updating is False
    gate.set()
    assert await loading == "5"


async def test_an_update_that_cannot_be_cancelled_ends_with_the_last_good_weights(
    trainer: TrainerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness = trainer.harness
    await trainer.begin_update()
    harness.engine.failures |= {"receive": [touched()], "cancel_transfer": [untouched()]}
    await failing(trainer.collective.receive(HOLDER, {}))

    assert (harness.state.phase, harness.state.version) == (Phase.JOINING, "base")
    assert "could not be cancelled" in caplog.text
    assert harness.ended == []


async def test_files_with_the_label_of_an_update_are_different_weights(
    trainer: TrainerHarness,
) -> None:
    agent, collective, names = trainer.harness.agent, trainer.collective, []
    await collective.join_transfer(HOLDER, {})
    for _ in range(2):
        await collective.begin_transfer(HOLDER)
        await collective.end_transfer(HOLDER, "5")
        names.append(agent.name)
        await trainer.files.load(HOLDER, step(trainer.harness, 5))
        names.append(agent.name)

    received, files, *again = names
    assert (received.version, files.version) == ("5", "5")
    assert (files.run_id, received.digest) == (None, None)
    assert received.run_id is not None
    assert files.digest is not None
    assert again == [received, files]


@pytest.mark.parametrize("path", ["x" * 5000, "/w/" + "d/" * 600])
async def test_an_invalid_path_is_refused_without_being_repeated(
    trainer: TrainerHarness, path: str
) -> None:
    refusal = await refused(trainer.files.load(HOLDER, path, "5"))

    assert refusal.reason is Reason.BAD_REQUEST
    assert len(refusal.message) < 100


# --- loads that failed ------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", [False, True], ids=["the engine's failure", "our own mistake"])
async def test_a_version_that_broke_the_engine_is_no_longer_held(
    serving: WorkerHarness, mistake: bool
) -> None:
    await serving.staged_in_a_pause("1")
    staged = present(serving.agent.staging.staged)
    error: Any = ValueError("a mistake") if mistake else touched()
    serving.engine.failures["load"] = [error]
    failure = await failing(serving.load("1"))

    assert ("ValueError" in failure.message) is mistake
    assert (serving.agent.phase, serving.agent.version) == (Phase.JOINING, "base")
    assert serving.engine.label == "base"
    await soon(lambda: staged.checkpoint.files == ())
    assert present(serving.agent.good.checkpoint).files, "what serves stays open"


async def test_restored_weights_report_no_cache_keys_of_the_broken_load(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=True)
    await trainer.files.load(HOLDER, step(harness, 5))
    assert harness.agent.kept.oldest == f"base@{BASE_DIGEST}"
    harness.engine.failures["load"] = [touched()]
    await failing(trainer.files.load(HOLDER, step(harness, 6, 2.0)))

    assert harness.state.version == "5"
    assert harness.agent.kept.oldest is None, "all requests were ended, and their cache with them"


async def test_restored_weights_cannot_be_renamed(trainer: TrainerHarness) -> None:
    harness = trainer.harness
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await trainer.files.load(HOLDER, step(harness, 5))
    harness.engine.failures["load"] = [touched()]
    await failing(trainer.files.load(HOLDER, step(harness, 6, 2.0)))
    refusal = await refused(trainer.files.name_version(HOLDER, "6"))

    assert refusal.reason is Reason.VERSION_MISMATCH
    assert harness.engine.label == "5"


async def test_a_version_that_broke_the_engine_may_be_loaded_after_the_next_admission(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    path = step(harness, 5)
    harness.engine.failures["load"] = [touched()]
    await failing(trainer.files.load(HOLDER, path))
    assert (await refused(trainer.files.load(HOLDER, path))).reason is Reason.BROKEN
    await harness.admit("base")

    assert await trainer.files.load(HOLDER, path) == "5"
    assert harness.state.load_failure is None


# --- pauses -----------------------------------------------------------------------------------------


async def test_clearing_the_cache_does_not_turn_an_aborting_pause_into_a_keeping_one(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    await trainer.seat.pause(HOLDER, PauseMode.ABORT, keep_cache=True)
    harness.clock.advance(5)
    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=False)
    pause = present(harness.state.pause)

    assert (pause.mode, pause.cache_kept) == (PauseMode.ABORT, False)
    assert pause.paused_seconds == 5, "it is still the same pause"
    assert harness.engine.calls[-1] == "pause abort"


async def test_a_drain_that_fails_after_its_deadline_is_a_failed_pause(
    serving: WorkerHarness,
) -> None:
    serving.engine.running = 1
    serving.engine.gates["pause wait"] = asyncio.Event()
    serving.engine.failures["pause wait"] = [untouched()]
    await failing(serving.pause(PauseMode.WAIT, drain=0.01))

    assert (serving.state.phase, serving.state.pause) == (Phase.SERVING, None)
    assert not serving.engine.paused


async def test_every_call_of_a_trainer_renews_its_pause(trainer: TrainerHarness) -> None:
    harness = trainer.harness
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    harness.clock.advance(50)
    await trainer.files.load(HOLDER, step(harness, 5))

    assert present(harness.state.pause).lease_remaining_seconds == 60


async def test_requests_end_before_the_engine_sleeps_and_a_second_sleep_has_no_effect(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    harness.engine.running = 2
    await trainer.seat.sleep(HOLDER, 1, PauseMode.KEEP)
    await trainer.seat.sleep(HOLDER, 1, PauseMode.KEEP)

    assert harness.engine.calls == ["pause keep", "pause abort", "sleep 1"]


# --- adapters ---------------------------------------------------------------------------------------


class Slots:
    """A serving worker with room for two adapters."""

    def __init__(self, harness: WorkerHarness, private: Path) -> None:
        self.harness, self.private = harness, private
        harness.agent.adapters._slots = 2
        harness.agent.adapters.max_rank = 8

    async def put(self, version: str) -> None:
        path = self.harness.root / f"adapter-{version}"
        write_adapter(path, seed=len(version), modules=TINY_MODULES, rank=2)
        source = Source(path=str(path))
        request = AdapterRequest(version=version, source=source, epoch=self.harness.epoch())
        await self.harness.agent.put_adapter("sql", request)

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Do something in the middle of the next check."""
        inspector: Any = self.harness.agent.staging.rules.inspector
        inspector.before_finite = lambda _go_on: act()


@pytest.fixture
async def slots(
    serving: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Slots]:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    yield Slots(serving, private)
    serving.agent.adapters.close()
    await soon(lambda: not list(private.iterdir()))


async def test_an_adapter_whose_load_failed_is_removed_from_the_engine(slots: Slots) -> None:
    slots.harness.engine.failures["add_adapter"] = [untouched()]
    await failing(slots.put("1"))

    assert slots.harness.engine.calls == ["add_adapter sql@1", "remove_adapter sql@1"]
    await soon(lambda: not list(slots.private.iterdir()))


async def test_an_adapter_is_not_loaded_into_a_worker_that_started_to_drain(slots: Slots) -> None:
    drained: list[Any] = []
    loop = asyncio.get_running_loop()
    drain = slots.harness.agent.drain

    def in_the_middle() -> None:
        work = drain(patience_seconds=1)
        drained.append(asyncio.run_coroutine_threadsafe(work, loop).result(5))

    slots.meanwhile(in_the_middle)

    assert (await refused(slots.put("1"))).reason is Reason.WRONG_PHASE
    assert len(drained) == 1
    assert not any(call.startswith("add_adapter") for call in slots.harness.engine.calls)


async def test_a_finished_adapter_call_leaves_no_work_in_progress(slots: Slots) -> None:
    kinds: list[str | None] = []

    def look() -> None:
        operation = slots.harness.state.operation
        kinds.append(operation.kind if operation is not None else None)

    slots.meanwhile(look)
    await slots.put("1")
    look()

    assert kinds == ["adapter", None]


async def test_a_drained_worker_leaves_no_adapter_files(slots: Slots) -> None:
    await slots.put("1")
    assert list(slots.private.iterdir())
    await slots.harness.agent.drain(patience_seconds=1)

    assert not list(slots.private.iterdir())


async def test_an_adapter_is_not_removed_under_another_callers_pause(slots: Slots) -> None:
    harness = slots.harness
    await slots.put("1")
    gate = harness.engine.gates["pause keep"] = asyncio.Event()
    pausing = asyncio.create_task(harness.pause(holder="another"))
    await soon(lambda: "pause keep" in harness.engine.calls)
    removing = asyncio.create_task(
        harness.agent.remove_adapter("sql", AdapterRemoval(epoch=harness.epoch()))
    )
    await asyncio.sleep(0)
    gate.set()
    await pausing

    assert (await refused(removing)).reason is Reason.HELD_BY_ANOTHER
    assert harness.state.adapters[0].version == "1"
