"""Every call of the agent, in every phase, with a failure of each engine call inside it.

An engine call fails once, fails from then on, or hangs, before or after it takes effect. Afterwards
the worker's state matches its engine (`contradiction`), and no weights changed
while the engine generated. The expiry of a lease and a fence succeed. Once the engine works again the
worker can load weights and serve, or has ended its process.

Time is virtual and threads run inline, so timeouts cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.contradictions import contradiction
from tests.support.fake_engine import FakeEngine, FakeFault, FaultyFakeEngine
from tests.support.tiny import write_tiny
from tests.support.worker_harness import (
    HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    start_worker,
)

from fleet_worker.engine.limits import Limits
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode, Phase
from fleet_worker.trainer.transfers import TransferRoom

SHORT = 0.01
LONGEST_CALL_SECONDS = 20.0
MAX_ENGINE_CALLS = 20
FAULTS = {
    "fails from then on": {"always": True},
    "hangs after its effect": {"hangs": True, "late": True},
}
MILDER_FAULTS = {
    "fails once": {},
    "fails once, after its effect": {"late": True},
    "hangs from then on": {"hangs": True, "always": True},
}


class FakeThreadingAtStart:
    """In place of `threading`: a thread's work is done at its start."""

    class Thread:
        def __init__(self, target: Callable[[], object], **_: object) -> None:
            self.start = target


class FakeThreadingAtJoin:
    """In place of `threading`: a thread's work is done at its join."""

    class Thread:
        def __init__(self, target: Callable[..., object], args: Any = (), **_: object) -> None:
            self.start = lambda: None
            self.join = partial(target, *args)


async def fake_to_thread(work: Callable[..., object], *arguments: object) -> object:
    return work(*arguments)


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fleet_worker.lifecycle.quiesce._PATIENCE_SECONDS", SHORT)
    monkeypatch.setattr("fleet_worker.lifecycle.quiesce._POLL_SECONDS", SHORT / 10)
    monkeypatch.setattr("fleet_worker.lifecycle.canary_prompts._PATIENCE_SECONDS", SHORT)
    # No file system hangs here, and no memory is short.
    monkeypatch.setattr("fleet_worker.checkpoint.store_threads.threading", FakeThreadingAtStart)
    monkeypatch.setattr("fleet_worker.checkpoint.reading.threading", FakeThreadingAtJoin)
    monkeypatch.setattr("asyncio.to_thread", fake_to_thread)
    monkeypatch.setattr("fleet_worker.checkpoint.memory.headroom", lambda: 1 << 40)
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))


@dataclass
class Scenario:
    """A worker over an engine that can fail, and its callers."""

    trainer: TrainerHarness
    faulty: FaultyFakeEngine

    @property
    def harness(self) -> WorkerHarness:
        return self.trainer.harness

    def check(self, when: str) -> None:
        """Check that the state matches the engine and the label the weights."""
        harness, engine = self.harness, self.harness.engine
        found = contradiction(
            harness.agent.lifecycle,
            paused=engine.paused,
            unfinished=engine.running,
            under_way=harness.agent.lock.locked(),
        )
        assert found is None or harness.ended, f"{when}: {found}"
        assert self.faulty.violations == [], when
        if not engine.paused and engine.running and not harness.ended:
            label = engine.label.partition("@")[0]
            held = Path(engine.weights).name or "base"
            assert label == harness.agent.version, when
            assert label == held or held.startswith("received"), when

    async def attempt(self, work: Awaitable[object], when: str) -> None:
        """Make a call that may fail but must end."""
        try:
            async with asyncio.timeout(LONGEST_CALL_SECONDS):
                await work
        except (Refusal, EngineFailure):
            pass
        except TimeoutError:
            pytest.fail(f"{when}: the call did not end")
        self.check(when)


# --- phases ---------------------------------------------------------------------------------


async def serving(scenario: Scenario) -> None:
    await scenario.harness.admit("base")
    scenario.harness.engine.running = 2


async def joining(_: Scenario) -> None:
    return


async def unfinished_requests(scenario: Scenario) -> None:
    await serving(scenario)
    scenario.harness.engine.stubborn = True
    await failing(scenario.harness.fence())
    scenario.harness.engine.stubborn = False


async def paused(scenario: Scenario) -> None:
    await serving(scenario)
    await scenario.harness.pause(holder=HOLDER)


async def loaded(scenario: Scenario) -> None:
    await paused(scenario)
    await scenario.harness.load("1", holder=HOLDER)
    await scenario.harness.stage("2")


async def asleep(scenario: Scenario) -> None:
    await serving(scenario)
    await scenario.trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)


async def fenced_asleep(scenario: Scenario) -> None:
    await asleep(scenario)
    await scenario.harness.fence()


async def receiving(scenario: Scenario) -> None:
    await serving(scenario)
    await scenario.trainer.begin_update()


async def receiving_while_joining(scenario: Scenario) -> None:
    await scenario.trainer.begin_update()


async def connected(scenario: Scenario) -> None:
    await paused(scenario)
    await scenario.trainer.collective.join_transfer(HOLDER, {})


PHASES = [
    serving,
    joining,
    unfinished_requests,
    paused,
    loaded,
    asleep,
    fenced_asleep,
    receiving,
    receiving_while_joining,
    connected,
]

# --- calls ---------------------------------------------------------------------------------------


async def expired(scenario: Scenario) -> None:
    scenario.harness.clock.advance(1000)
    await scenario.harness.agent.expire_lease()


async def put_adapter(scenario: Scenario) -> None:
    folder = write_adapter(scenario.harness.root / "tuned", seed=1, modules=TINY_MODULES, rank=2)
    await scenario.trainer.files.put_adapter(HOLDER, "tuned", str(folder), "1")


async def remove_adapter(scenario: Scenario) -> None:
    await put_adapter(scenario)
    await scenario.trainer.files.remove_adapter(HOLDER, "tuned")


CALLS: dict[str, Callable[[Scenario], Awaitable[object]]] = {
    "stage": lambda scenario: scenario.harness.stage("2"),
    "pause keep": lambda scenario: scenario.harness.pause(holder=HOLDER),
    "pause wait": lambda scenario: scenario.harness.pause(
        PauseMode.WAIT, drain=SHORT, holder=HOLDER
    ),
    "pause abort": lambda scenario: scenario.harness.pause(PauseMode.ABORT, holder=HOLDER),
    "load": lambda scenario: scenario.harness.load("1", holder=HOLDER),
    "load the newer one": lambda scenario: scenario.harness.load("2", holder=HOLDER),
    "load a directory": lambda scenario: scenario.trainer.files.load(
        HOLDER, str(scenario.harness.root / "2"), "2"
    ),
    "apply": lambda scenario: scenario.harness.apply("1"),
    "resume": lambda scenario: scenario.harness.resume(
        scenario.harness.agent.version or "base", holder=HOLDER
    ),
    "admit": lambda scenario: scenario.harness.admit(scenario.harness.agent.version or "base"),
    "fence": lambda scenario: scenario.harness.fence(),
    "fence after a drain": lambda scenario: scenario.harness.fence(drain=SHORT),
    "probe": lambda scenario: scenario.harness.run_prompts(),
    "drain": lambda scenario: scenario.harness.agent.drain(patience_seconds=SHORT),
    "expire_lease": expired,
    "end_leftover_requests": lambda scenario: scenario.harness.agent.end_leftover_requests(),
    "put_adapter": put_adapter,
    "remove_adapter": remove_adapter,
    "rename": lambda scenario: scenario.trainer.files.name_version(HOLDER, "7"),
    "sleep": lambda scenario: scenario.trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT),
    "wake": lambda scenario: scenario.trainer.seat.wake(HOLDER, None),
    "wake a part": lambda scenario: scenario.trainer.seat.wake(HOLDER, ["weights"]),
    "join_transfer": lambda scenario: scenario.trainer.collective.join_transfer(HOLDER, {}),
    "begin_transfer": lambda scenario: scenario.trainer.collective.begin_transfer(HOLDER),
    "receive": lambda scenario: scenario.trainer.collective.receive(HOLDER, {"names": ["a"]}),
    "end_transfer": lambda scenario: scenario.trainer.collective.end_transfer(HOLDER, "5"),
    "end a nameless transfer": lambda scenario: scenario.trainer.collective.end_transfer(
        HOLDER, None
    ),
    "drop_prefixes": lambda scenario: scenario.trainer.seat.drop_prefixes(running=True),
}


EVERY_TIME = frozenset({"pause wait", "load the newer one", "apply", "resume", "fence"})
"""Calls that the operator makes in each rollout. `make test` plays them with the milder faults, too."""
CASES = [
    *(pytest.param(FAULTS, call, id=f"lasting faults-{call}") for call in CALLS),
    *(
        pytest.param(
            MILDER_FAULTS,
            call,
            id=f"milder faults-{call}",
            marks=() if call in EVERY_TIME else pytest.mark.long,
        )
        for call in CALLS
    ),
]


@pytest.mark.parametrize(("faults", "call"), CASES)
def test_the_worker_recovers_from_every_failure_of_the_engine(
    faults: dict[str, dict[str, bool]], call: str, tmp_path: Path
) -> None:
    async def play_every_failure(phase: Callable[[Scenario], Awaitable[None]]) -> None:
        engine_calls = await play(phase, call, None, "no fault", tmp_path)
        assert engine_calls < MAX_ENGINE_CALLS
        for kind, options in faults.items():
            for number in range(engine_calls):
                fault = FakeFault(number, **options)
                when = f"{call} from {phase.__name__}, engine call {number} {kind}"
                await play(phase, call, fault, when, tmp_path)

    for phase in PHASES:
        virtual_time.run(play_every_failure(phase))


async def play(
    phase: Callable[[Scenario], Awaitable[None]],
    call: str,
    fault: FakeFault | None,
    when: str,
    folder: Path,
) -> int:
    """Play one call with one fault on a new worker, and return its number of engine calls."""
    engines: list[FaultyFakeEngine] = []

    def wrap(engine: FakeEngine) -> FaultyFakeEngine:
        engines.append(FaultyFakeEngine(engine))
        return engines[0]

    async with start_worker(folder, wrap) as harness:
        room = TransferRoom(backend="ipc")
        scenario = Scenario(TrainerHarness.of(harness, room=room), engines[0])
        agent = harness.agent
        agent.limits = Limits(control_seconds=SHORT, load_seconds=SHORT, cut_seconds=SHORT)
        agent.engine._limits = agent.limits
        agent.adapters._slots, agent.adapters.max_rank = 2, 8
        write_tiny(harness.root / "2", 2.0)
        await harness.stage("1")
        await phase(scenario)
        scenario.check("before")
        scenario.faulty.set_fault(fault)
        await scenario.attempt(CALLS[call](scenario), when)
        calls_inside = len(scenario.faulty.names)
        if fault is not None or phase is unfinished_requests:
            await scenario.attempt(expired(scenario), f"{when}; then its lease expires")
            await scenario.attempt(harness.fence(), f"{when}; then it is fenced")
            assert agent.phase in (Phase.JOINING, Phase.BROKEN, Phase.DRAINING), when
            scenario.faulty.set_fault(None)
            await scenario.attempt(
                agent.end_leftover_requests(), f"{when}; then the engine works again"
            )
            await check_recovery(scenario, when)
        agent.adapters.close()
        return calls_inside


async def check_recovery(scenario: Scenario, when: str) -> None:
    """Check that a worker whose process continues loads weights and serves them."""
    harness = scenario.harness
    if harness.ended or harness.agent.phase is Phase.DRAINING:
        return
    assert harness.agent.is_idle, when
    path = await harness.stage("9")
    await harness.load("9")
    await harness.admit("9")

    assert harness.engine.weights == str(path), when
    assert harness.state.phase is Phase.SERVING, when
    scenario.check(when)
