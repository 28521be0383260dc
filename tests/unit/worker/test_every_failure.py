"""Every call of the agent, from every phase, with every call of the engine inside it going wrong.

A call of the engine fails once, fails from then on, or hangs, before or after it takes effect.
Afterwards the worker fits its engine (`core.states.contradiction`), no weights changed under an
engine that generates, the end of a lease and a fence get through, and once the engine is well again
the worker can be given weights and opened, or has ended its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import FakeEngine, FakeFault, FaultyFakeEngine
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import WHO, Bench, Trainer, a_bench

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import contradiction
from fleet_worker.protocol import PauseMode, Phase
from fleet_worker.runtime.limits import Limits
from fleet_worker.runtime.transferring import TransferRoom

SHORT = 0.01
GIVES_UP = 20.0
MANY_CALLS = 20
FAULTS = {
    "fails once": {},
    "fails once, after its effect": {"late": True},
    "fails from then on": {"always": True},
    "hangs after its effect": {"hangs": True, "late": True},
    "hangs from then on": {"hangs": True, "always": True},
}


class FakeAtOnce:
    """In place of `threading`: what a thread would do is done when it is started."""

    class Thread:
        def __init__(self, target: Callable[[], object], **_: object) -> None:
            self.start = target


class FakeAtJoin:
    """In place of `threading`: what a thread would do is done when it is waited for."""

    class Thread:
        def __init__(self, target: Callable[..., object], args: Any = (), **_: object) -> None:
            self.start = lambda: None
            self.join = partial(target, *args)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fleet_worker.runtime.quiesce._PATIENCE_SECONDS", SHORT)
    monkeypatch.setattr("fleet_worker.runtime.quiesce._LOOK_AGAIN_SECONDS", SHORT / 10)
    monkeypatch.setattr("fleet_worker.runtime.probing._PATIENCE_SECONDS", SHORT)
    # Threads and looks at memory are most of the cost; no file system hangs here, no memory is short.
    monkeypatch.setattr("fleet_worker.runtime.store_threads.threading", FakeAtOnce)
    monkeypatch.setattr("fleet_worker.adapters.reading.threading", FakeAtJoin)
    monkeypatch.setattr("fleet_worker.adapters.memory.headroom", lambda: 1 << 40)
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))


@dataclass
class Lab:
    """A worker over an engine that can go wrong, and those who drive it."""

    trainer: Trainer
    faulty: FaultyFakeEngine

    @property
    def bench(self) -> Bench:
        return self.trainer.bench

    def check(self, when: str) -> None:
        """The worker fits its engine, and its label is that of its weights."""
        bench, engine = self.bench, self.bench.engine
        found = contradiction(
            bench.agent.standing,
            paused=engine.paused,
            unfinished=engine.running,
            under_way=bench.agent.lock.locked(),
        )
        assert found is None or bench.ended, f"{when}: {found}"
        assert self.faulty.violations == [], when
        if not engine.paused and engine.running and not bench.ended:
            label = engine.label.partition("@")[0]
            held = Path(engine.weights).name or "base"
            assert label == bench.agent.version, when
            assert label == held or held.startswith("received"), when

    async def attempt(self, work: Awaitable[object], when: str) -> None:
        """Make a call, whatever becomes of it."""
        try:
            async with asyncio.timeout(GIVES_UP):
                await work
        except (Refusal, EngineFailure):
            pass
        except TimeoutError:
            pytest.fail(f"{when}: the call did not end")
        self.check(when)


# --- from where ---------------------------------------------------------------------------------


async def serving(lab: Lab) -> None:
    await lab.bench.admit("base")
    lab.bench.engine.running = 2


async def joining(_: Lab) -> None:
    return


async def not_at_rest(lab: Lab) -> None:
    await serving(lab)
    lab.bench.engine.stubborn = True
    with pytest.raises(EngineFailure):
        await lab.bench.fence()
    lab.bench.engine.stubborn = False


async def paused(lab: Lab) -> None:
    await serving(lab)
    await lab.bench.pause(holder=WHO)


async def loaded(lab: Lab) -> None:
    await paused(lab)
    await lab.bench.load("1", holder=WHO)
    await lab.bench.stage("2")


async def asleep(lab: Lab) -> None:
    await serving(lab)
    await lab.trainer.driver.sleep(WHO, 1, PauseMode.ABORT)


async def closed_asleep(lab: Lab) -> None:
    await asleep(lab)
    await lab.bench.fence()


async def receiving(lab: Lab) -> None:
    await serving(lab)
    await lab.trainer.driver.join_transfer(WHO, {})
    await lab.trainer.driver.begin_transfer(WHO)


async def receiving_closed(lab: Lab) -> None:
    await lab.trainer.driver.join_transfer(WHO, {})
    await lab.trainer.driver.begin_transfer(WHO)


async def connected(lab: Lab) -> None:
    await paused(lab)
    await lab.trainer.driver.join_transfer(WHO, {})


PHASES = [
    serving,
    joining,
    not_at_rest,
    paused,
    loaded,
    asleep,
    closed_asleep,
    receiving,
    receiving_closed,
    connected,
]

# --- what ---------------------------------------------------------------------------------------


async def expired(lab: Lab) -> None:
    lab.bench.clock.advance(1000)
    await lab.bench.agent.expire_lease()


async def put_adapter(lab: Lab) -> None:
    folder = write_adapter(lab.bench.root / "tuned", seed=1, modules=TINY_MODULES, rank=2)
    await lab.trainer.driver.put_adapter(WHO, "tuned", str(folder), "1")


async def remove_adapter(lab: Lab) -> None:
    await put_adapter(lab)
    await lab.trainer.driver.remove_adapter(WHO, "tuned")


CALLS: dict[str, Callable[[Lab], Awaitable[object]]] = {
    "stage": lambda lab: lab.bench.stage("2"),
    "pause keep": lambda lab: lab.bench.pause(holder=WHO),
    "pause wait": lambda lab: lab.bench.pause(PauseMode.WAIT, drain=SHORT, holder=WHO),
    "pause abort": lambda lab: lab.bench.pause(PauseMode.ABORT, holder=WHO),
    "load": lambda lab: lab.bench.load("1", holder=WHO),
    "load the newer one": lambda lab: lab.bench.load("2", holder=WHO),
    "load a directory": lambda lab: lab.trainer.driver.load(WHO, str(lab.bench.root / "2"), "2"),
    "apply": lambda lab: lab.bench.apply("1"),
    "resume": lambda lab: lab.bench.resume(lab.bench.agent.version or "base", holder=WHO),
    "admit": lambda lab: lab.bench.admit(lab.bench.agent.version or "base"),
    "fence": lambda lab: lab.bench.fence(),
    "fence after a drain": lambda lab: lab.bench.fence(drain=SHORT),
    "probe": lambda lab: lab.bench.probe(),
    "drain": lambda lab: lab.bench.agent.drain(patience_seconds=SHORT),
    "expire_lease": expired,
    "seek_rest": lambda lab: lab.bench.agent.seek_rest(),
    "put_adapter": put_adapter,
    "remove_adapter": remove_adapter,
    "rename": lambda lab: lab.trainer.driver.name_version(WHO, "7"),
    "sleep": lambda lab: lab.trainer.driver.sleep(WHO, 1, PauseMode.ABORT),
    "wake": lambda lab: lab.trainer.driver.wake(WHO, None),
    "wake a part": lambda lab: lab.trainer.driver.wake(WHO, ["weights"]),
    "join_transfer": lambda lab: lab.trainer.driver.join_transfer(WHO, {}),
    "begin_transfer": lambda lab: lab.trainer.driver.begin_transfer(WHO),
    "receive": lambda lab: lab.trainer.driver.receive(WHO, {"names": ["a"]}),
    "end_transfer": lambda lab: lab.trainer.driver.end_transfer(WHO, "5"),
    "end a nameless transfer": lambda lab: lab.trainer.driver.end_transfer(WHO, None),
    "drop_prefixes": lambda lab: lab.trainer.driver.drop_prefixes(running=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_no_failure_of_the_engine_leaves_a_dead_end(
    phase: Callable[[Lab], Awaitable[None]], call: str, tmp_path: Path
) -> None:
    calls_inside = await one(phase, call, None, "no fault", tmp_path / "well")
    assert calls_inside < MANY_CALLS
    for kind, options in FAULTS.items():
        for number in range(calls_inside):
            fault = FakeFault(number, **options)
            when = f"{call} from {phase.__name__}, engine call {number} {kind}"
            await one(phase, call, fault, when, tmp_path / f"{kind} {number}")


async def one(
    phase: Callable[[Lab], Awaitable[None]],
    call: str,
    fault: FakeFault | None,
    when: str,
    folder: Path,
) -> int:
    """One history of one worker. Returns: how many calls of the engine there were inside the call."""
    folder.mkdir()  # noqa: ASYNC240 - tests wait for their disk
    engines: list[FaultyFakeEngine] = []

    def wrap(engine: FakeEngine) -> FaultyFakeEngine:
        engines.append(FaultyFakeEngine(engine))
        return engines[0]

    async with a_bench(folder, wrap) as bench:
        room = TransferRoom(backend="ipc")
        lab = Lab(Trainer.of(bench, room=room), engines[0])
        agent = bench.agent
        agent.limits = Limits(control_seconds=SHORT, load_seconds=SHORT, cut_seconds=SHORT)
        agent.engine._limits = agent.limits  # type: ignore[attr-defined]
        agent.adapters._slots, agent.adapters.max_rank = 2, 8
        write_tiny(bench.root / "2", 2.0)
        await bench.stage("1")
        await phase(lab)
        lab.check("before")
        lab.faulty.set_fault(fault)
        await lab.attempt(CALLS[call](lab), when)
        calls_inside = len(lab.faulty.names)
        if fault is not None or phase is not_at_rest:
            await lab.attempt(expired(lab), f"{when}; then its lease has run out")
            await lab.attempt(bench.fence(), f"{when}; then it is fenced")
            assert agent.phase in (Phase.JOINING, Phase.BROKEN, Phase.DRAINING), when
            lab.faulty.set_fault(None)
            await lab.attempt(agent.seek_rest(), f"{when}; then the engine is well")
            await works_again(lab, when)
        agent.adapters.close()
        return calls_inside


async def works_again(lab: Lab, when: str) -> None:
    """A worker that was not given up is at rest, takes weights and serves them."""
    bench = lab.bench
    if bench.ended or bench.agent.phase is Phase.DRAINING:
        return
    assert bench.agent.is_at_rest, when
    path = await bench.stage("9")
    await bench.load("9")
    await bench.admit("9")

    assert bench.engine.weights == str(path), when
    assert bench.state.phase is Phase.SERVING, when
    lab.check(when)
