"""Which load a version gets: one in place, or a full one, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.worker_harness import HOLDER, TrainerHarness, WorkerHarness, failing, step

from fleet_worker.engine.records import HeldBytes
from fleet_worker.lifecycle.settling import make_ready, settle
from fleet_worker.lifecycle.weights import Received, Weights
from fleet_worker.protocol import PauseMode, Phase, SwapTimings


@pytest.fixture
def in_place(serving: WorkerHarness) -> WorkerHarness:
    """A serving worker that loads in place where it can. It has started on files."""
    serving.agent.loads_in_place = True
    return serving


async def swapped(worker: WorkerHarness, *versions: str) -> list[str]:
    """The calls that bring weights into the engine."""
    for version in versions:
        await worker.swap(version)
    return [call for call in worker.engine.calls if call.startswith(("load ", "change "))]


def timings(worker: WorkerHarness) -> SwapTimings:
    assert worker.state.timings is not None
    return worker.state.timings


async def test_loads_are_full_ones_unless_the_worker_may_load_in_place(
    serving: WorkerHarness,
) -> None:
    root = serving.root

    assert await swapped(serving, "1", "2") == [f"load {root / '1'}", f"load {root / '2'}"]
    assert serving.engine.compared == [None] * len(serving.engine.compared)
    assert (timings(serving).in_place, timings(serving).why_full) == (False, "")


async def test_a_version_after_a_full_load_is_loaded_in_place(in_place: WorkerHarness) -> None:
    root = in_place.root
    calls = await swapped(in_place, "1", "2", "3")

    assert calls == [
        f"load {root / '1'}",
        f"change {root / '1'} to {root / '2'}",
        f"change {root / '2'} to {root / '3'}",
    ]
    assert (timings(in_place).in_place, timings(in_place).why_full) == (True, "")
    assert timings(in_place).copy_seconds is not None
    assert in_place.engine.label == "3"


async def test_the_first_load_after_a_start_on_files_is_a_full_one_and_says_why(
    in_place: WorkerHarness,
) -> None:
    await swapped(in_place, "1")

    assert timings(in_place).in_place is False
    assert timings(in_place).why_full == "the version in the engine is not in memory"


async def test_what_differs_is_part_of_the_staging_memory(in_place: WorkerHarness) -> None:
    await swapped(in_place, "1")
    agent, engine = in_place.agent, in_place.engine
    good = agent.good.checkpoint
    assert good is not None
    rules = replace(agent.staging.rules, budget_bytes=2 * good.size_bytes + 100)
    agent.staging.rules = rules
    engine.holds = [HeldBytes(is_done=True, line="")]  # of the stage, before it reads
    engine.holds += [HeldBytes(False, "x"), HeldBytes(True, "x", changes_bytes=60)]
    path = await in_place.stage("2")

    assert engine.held[-1] == str(path)
    assert engine.compared[-1] == str(in_place.root / "1"), "the version that it has"
    assert engine.rooms[-2:] == [100, 100]
    assert agent.memory_left() == 40
    await make_ready(agent)
    assert engine.rooms[-1] == 100, "what it keeps for these versions already counts once"
    await in_place.pause()
    await in_place.load("2")
    await in_place.resume("2")
    await settle(agent)
    assert agent.memory_left() == agent.good.checkpoint.size_bytes + 100


async def test_a_full_load_follows_at_once_where_the_engine_cannot_load_in_place(
    in_place: WorkerHarness,
) -> None:
    in_place.engine.why_full = "the model is quantised"
    root = in_place.root
    calls = await swapped(in_place, "1", "2")

    assert calls[1:] == [f"change {root / '1'} to {root / '2'}", f"load {root / '2'}"]
    assert in_place.agent.phase is Phase.SERVING
    assert timings(in_place).in_place is False
    assert timings(in_place).why_full == "the model is quantised"


async def test_a_call_in_place_that_fails_is_a_failed_load_and_the_next_one_is_full(
    in_place: WorkerHarness,
) -> None:
    await swapped(in_place, "1")
    in_place.engine.failures["load_in_place"] = [touched("the engine did not answer")]
    await in_place.staged_in_a_pause("2")
    await failing(in_place.load("2"))

    assert in_place.engine.calls[-4:] == [
        f"load {in_place.root / '1'}",
        "probe",
        "reset_caches",
        "set_version 1",
    ]
    assert not in_place.agent.is_open
    assert in_place.agent.version == "1"


async def test_a_full_load_that_touches_nothing_after_an_attempt_in_place_is_a_failed_load(
    in_place: WorkerHarness,
) -> None:
    await swapped(in_place, "1")
    in_place.engine.why_full = "one of two processes has other values"
    in_place.engine.failures["load"] = [untouched()]
    await in_place.staged_in_a_pause("2")
    failure = await failing(in_place.load("2"))

    assert failure.touched
    assert in_place.engine.weights == str(in_place.root / "1")
    assert in_place.engine.calls[-4] == f"load {in_place.root / '1'}"
    assert not in_place.agent.is_open


async def test_weights_that_came_over_a_collective_are_replaced_in_full(
    in_place: WorkerHarness,
) -> None:
    await swapped(in_place, "1")
    in_place.agent.good = Received("2", "run", "mark")
    in_place.engine.calls.clear()

    assert await swapped(in_place, "3") == [f"load {in_place.root / '3'}"]
    assert timings(in_place).why_full == "the weights in the engine came over a collective"


async def test_a_version_that_is_not_in_memory_is_loaded_in_full(in_place: WorkerHarness) -> None:
    await swapped(in_place, "1")
    in_place.agent.staging.rules = replace(in_place.agent.staging.rules, budget_bytes=0)
    in_place.engine.calls.clear()

    assert await swapped(in_place, "2") == [f"load {in_place.root / '2'}"]
    assert isinstance(in_place.agent.good, Weights)
    assert "not in memory" in timings(in_place).why_full


async def test_a_sleeping_engine_samples_and_compares_nothing(
    trainer: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, driver, asleep = trainer.harness, trainer.driver, list[object]()
    worker.agent.loads_in_place = True
    await driver.files.load(HOLDER, step(trainer, 5))
    hold = worker.engine.hold

    async def held(
        checkpoint: Any, base: Any = None, room: int = 0, *, samples: bool = False
    ) -> Any:
        if worker.agent.asleep:
            asleep.append(base or samples)
        return await hold(checkpoint, base, room, samples=samples)

    monkeypatch.setattr(worker.engine, "hold", held)
    await driver.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    await driver.files.load(HOLDER, step(trainer, 6))

    assert asleep
    assert set(asleep) == {False}
