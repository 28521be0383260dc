"""What is left behind: after failures, refusals and give-ups nothing stale may tell or hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import BASE_DIGEST, write_tiny
from tests.support.waiting import soon
from tests.unit.worker.conftest import WHO, Bench, Trainer, refused

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import AdapterRemoval, AdapterRequest, PauseMode, Phase, Reason, Source
from fleet_worker.runtime.transferring import TransferRoom


@pytest.fixture
async def trainer(serving: Bench) -> Trainer:
    """A driver that may send files, and weights over a collective."""
    return Trainer.of(serving, room=TransferRoom("own"))


def step(bench: Bench, number: int, value: float = 1.0) -> str:
    return str(write_tiny(bench.root / f"step_{number}", value))


async def failing(call: Any) -> EngineFailure:
    with pytest.raises(EngineFailure) as failure:
        await call
    return failure.value


# --- updates over a collective ----------------------------------------------------------------------


async def test_a_group_that_could_not_be_joined_again_is_no_group(trainer: Trainer) -> None:
    await trainer.driver.join_transfer(WHO, {})
    trainer.bench.engine.failures["join_transfer"] = [untouched()]
    await failing(trainer.driver.join_transfer(WHO, {}))

    assert trainer.transfers.state is not None
    assert trainer.transfers.state.connected is False
    assert "joined" in (await refused(trainer.driver.begin_transfer(WHO))).message


async def test_in_the_middle_of_an_update_the_worker_names_no_version(trainer: Trainer) -> None:
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    state = trainer.bench.state

    assert (state.version, state.source) == (None, None), "half of one and half of another"
    await trainer.driver.end_transfer(WHO, "7")
    assert trainer.bench.state.version == "7"


async def test_an_update_goes_on_under_the_pause_that_there_was(trainer: Trainer) -> None:
    bench = trainer.bench
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=True)
    bench.clock.advance(20)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    pause = bench.state.pause

    assert pause is not None
    assert pause.cache_kept, "what the trainer wants to keep is kept"
    assert pause.paused_seconds == 20


async def test_after_an_update_that_failed_a_load_of_files_is_no_update(trainer: Trainer) -> None:
    bench = trainer.bench
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    bench.engine.failures["receive"] = [touched()]
    await failing(trainer.driver.receive(WHO, {}))
    gate = bench.engine.gates["load"] = asyncio.Event()
    loading = asyncio.create_task(trainer.driver.load(WHO, step(bench, 5)))
    await soon(lambda: any(call.endswith("step_5") for call in bench.engine.calls))

    assert bench.state.phase is Phase.LOADING
    assert trainer.transfers.state is not None
    assert trainer.transfers.state.updating is False
    gate.set()
    assert await loading == "5"


async def test_an_update_that_cannot_be_abandoned_still_ends_with_the_last_good_weights(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    bench = trainer.bench
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    bench.engine.failures |= {"receive": [touched()], "abandon_transfer": [untouched()]}
    await failing(trainer.driver.receive(WHO, {}))

    assert (bench.state.phase, bench.state.version) == (Phase.JOINING, "base")
    assert "could not be abandoned" in caplog.text
    assert bench.ended == []


async def test_files_under_the_label_of_an_update_are_other_weights(trainer: Trainer) -> None:
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    await trainer.driver.end_transfer(WHO, "5")
    refusal = await refused(trainer.driver.load(WHO, step(trainer.bench, 5)))

    assert refusal.reason is Reason.VERSION_REUSED
    assert trainer.bench.state.version == "5"


@pytest.mark.parametrize("path", ["x" * 5000, "/w/" + "d/" * 600])
async def test_a_path_that_is_none_is_refused_without_repeating_it(
    trainer: Trainer, path: str
) -> None:
    refusal = await refused(trainer.driver.load(WHO, path, "5"))

    assert refusal.reason is Reason.BAD_REQUEST
    assert len(refusal.message) < 100


# --- loads that failed ------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", [False, True], ids=["the engine's failure", "our own mistake"])
async def test_what_broke_the_engine_is_held_no_longer(
    serving: Bench,
    mistake: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    await serving.stage("1")
    await serving.pause()
    staged = serving.agent.staging.staged
    assert staged is not None
    error: Any = ValueError("a mistake") if mistake else touched()
    serving.engine.failures["load"] = [error]
    await failing(serving.load("1"))

    await soon(lambda: staged.checkpoint.files == ())
    assert serving.agent.good.checkpoint is not None
    assert serving.agent.good.checkpoint.files, "what serves stays open"


async def test_what_was_written_to_after_its_stage_is_held_no_longer(serving: Bench) -> None:
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.stage("1")
    await serving.pause()
    staged = serving.agent.staging.staged
    assert staged is not None
    write_tiny(path, 9.0)
    assert (await refused(serving.load("1"))).reason is Reason.CHECKPOINT_CHANGED

    await soon(lambda: staged.checkpoint.files == ())
    assert serving.state.staged is None, "staging it again reads what is there now"


async def test_weights_that_were_put_back_read_no_keys_of_those_that_broke(
    trainer: Trainer,
) -> None:
    bench = trainer.bench
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=True)
    await trainer.driver.load(WHO, step(bench, 5))
    assert bench.agent.kept.oldest == f"base@{BASE_DIGEST}"
    bench.engine.failures["load"] = [touched()]
    await failing(trainer.driver.load(WHO, step(bench, 6, 2.0)))

    assert bench.state.version == "5"
    assert bench.agent.kept.oldest is None, "all requests were ended, and their cache with them"


async def test_weights_that_were_put_back_cannot_be_given_another_name(trainer: Trainer) -> None:
    bench = trainer.bench
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    await trainer.driver.load(WHO, step(bench, 5))
    bench.engine.failures["load"] = [touched()]
    await failing(trainer.driver.load(WHO, step(bench, 6, 2.0)))
    refusal = await refused(trainer.driver.name_version(WHO, "6"))

    assert refusal.reason is Reason.VERSION_MISMATCH
    assert bench.engine.label == "5"


async def test_once_it_was_admitted_again_what_broke_may_be_tried_again(trainer: Trainer) -> None:
    bench = trainer.bench
    path = step(bench, 5)
    bench.engine.failures["load"] = [touched()]
    await failing(trainer.driver.load(WHO, path))
    assert (await refused(trainer.driver.load(WHO, path))).reason is Reason.BROKEN
    await bench.admit("base")

    assert await trainer.driver.load(WHO, path) == "5"
    assert bench.state.load_failure is None


# --- pauses -----------------------------------------------------------------------------------------


async def test_a_pause_that_ended_requests_stays_one_when_its_cache_is_cleared(
    trainer: Trainer,
) -> None:
    bench = trainer.bench
    await trainer.driver.pause(WHO, PauseMode.ABORT, keep_cache=True)
    bench.clock.advance(5)
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=False)
    pause = bench.state.pause

    assert pause is not None
    assert (pause.mode, pause.cache_kept) == (PauseMode.ABORT, False)
    assert pause.paused_seconds == 5, "it is still the same pause"
    assert bench.engine.calls[-1] == "pause abort"


async def test_a_drain_that_fails_after_its_deadline_is_a_failed_pause(serving: Bench) -> None:
    serving.engine.running = 1
    serving.engine.gates["pause wait"] = asyncio.Event()
    serving.engine.failures["pause wait"] = [untouched()]
    await failing(serving.pause(PauseMode.WAIT, drain=0.01))

    assert (serving.state.phase, serving.state.pause) == (Phase.SERVING, None)
    assert not serving.engine.paused


async def test_every_call_of_a_trainer_keeps_its_pause_alive(trainer: Trainer) -> None:
    bench = trainer.bench
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    bench.clock.advance(50)
    await trainer.driver.load(WHO, step(bench, 5))

    assert bench.state.pause is not None
    assert bench.state.pause.lease_remaining_seconds == 60


async def test_before_an_engine_sleeps_its_requests_are_ended_and_asking_twice_is_once(
    trainer: Trainer,
) -> None:
    bench = trainer.bench
    bench.engine.running = 2
    await trainer.driver.sleep(WHO, 1, PauseMode.KEEP)
    await trainer.driver.sleep(WHO, 1, PauseMode.KEEP)

    assert bench.engine.calls == ["pause keep", "pause abort", "sleep 1"]


# --- adapters ---------------------------------------------------------------------------------------


class Slots:
    """A serving worker with room for two adapters."""

    def __init__(self, bench: Bench, private: Path) -> None:
        self.bench, self.private = bench, private
        bench.agent.adapters._slots = 2
        bench.agent.adapters.max_rank = 8

    async def put(self, version: str) -> None:
        path = self.bench.root / f"adapter-{version}"
        write_adapter(path, seed=len(version), modules=TINY_MODULES, rank=2)
        source = Source(path=str(path))
        request = AdapterRequest(version=version, source=source, epoch=self.bench.epoch())
        await self.bench.agent.put_adapter("sql", request)

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Do something in the middle of the next check."""
        inspector: Any = self.bench.agent.staging.rules.inspector
        inspector.before_finite = lambda _go_on: act()


@pytest.fixture
async def slots(
    serving: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Slots]:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    yield Slots(serving, private)
    serving.agent.adapters.close()
    await soon(lambda: not list(private.iterdir()))


async def test_an_adapter_that_the_engine_did_not_take_is_taken_out_again(slots: Slots) -> None:
    slots.bench.engine.failures["add_adapter"] = [untouched()]
    await failing(slots.put("1"))

    assert slots.bench.engine.calls == ["add_adapter sql@1", "remove_adapter sql@1"]
    await soon(lambda: not list(slots.private.iterdir()))


async def test_an_adapter_that_is_exchanged_while_it_is_read_is_refused(slots: Slots) -> None:
    path = slots.bench.root / "adapter-1"

    def exchange() -> None:
        path.rename(slots.bench.root / "moved")
        write_adapter(path, seed=99, modules=TINY_MODULES, rank=2)

    slots.meanwhile(exchange)

    assert (await refused(slots.put("1"))).reason is Reason.CHECKPOINT_CHANGED
    assert slots.bench.engine.calls == []


async def test_an_adapter_that_comes_to_a_worker_that_drains_meanwhile_is_not_put_in(
    slots: Slots,
) -> None:
    drained: list[Any] = []
    loop = asyncio.get_running_loop()
    drain = slots.bench.agent.drain

    def in_the_middle() -> None:
        work = drain(patience_seconds=1)
        drained.append(asyncio.run_coroutine_threadsafe(work, loop).result(5))

    slots.meanwhile(in_the_middle)

    assert (await refused(slots.put("1"))).reason is Reason.WRONG_PHASE
    assert len(drained) == 1
    assert not any(call.startswith("add_adapter") for call in slots.bench.engine.calls)


async def test_when_an_adapter_is_done_nothing_is_under_way_any_more(slots: Slots) -> None:
    kinds: list[str | None] = []

    def look() -> None:
        operation = slots.bench.state.operation
        kinds.append(operation.kind if operation is not None else None)

    slots.meanwhile(look)
    await slots.put("1")
    look()

    assert kinds == ["adapter", None]


async def test_a_worker_that_has_drained_leaves_no_files_behind(slots: Slots) -> None:
    await slots.put("1")
    assert list(slots.private.iterdir())
    await slots.bench.agent.drain(patience_seconds=1)

    assert not list(slots.private.iterdir())


async def test_an_adapter_is_not_removed_under_a_pause_that_another_got_first(
    slots: Slots,
) -> None:
    bench = slots.bench
    await slots.put("1")
    gate = bench.engine.gates["pause keep"] = asyncio.Event()
    pausing = asyncio.create_task(bench.pause(holder="another"))
    await soon(lambda: "pause keep" in bench.engine.calls)
    removing = asyncio.create_task(
        bench.agent.remove_adapter("sql", AdapterRemoval(epoch=bench.epoch()))
    )
    await asyncio.sleep(0)
    gate.set()
    await pausing

    assert (await refused(removing)).reason is Reason.HELD_BY_ANOTHER
    assert bench.state.adapters[0].version == "1"
