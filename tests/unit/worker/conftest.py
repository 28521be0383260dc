"""An agent over a fake engine, with a clock that goes when it is told to."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.clock import FakeClock
from tests.support.fake_engine import FakeEngine
from tests.support.tiny import TinyInspector, tiny_rules, write_tiny

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import (
    ApplyRequest,
    Epoch,
    FenceRequest,
    LoadRequest,
    Management,
    OpenRequest,
    PauseMode,
    PauseRequest,
    ProbeReport,
    ProbeRequest,
    Source,
    StageRequest,
    WorkerState,
)
from fleet_worker.runtime.agent import Agent
from fleet_worker.runtime.driver import Driver, DriverRules
from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.runtime.report import state_of
from fleet_worker.runtime.transferring import TransferRoom, Transfers


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad sources are looked at twice; what is bad in these tests is bad at once."""
    monkeypatch.setattr("fleet_worker.adapters.settling._LOOK_AGAIN_SECONDS", 0.0)


WHO = "trainer at 10.0.0.1"
OTHER = "trainer at 10.0.0.2"


async def refused(call: Any) -> Refusal:
    """Why a call was refused."""
    with pytest.raises(Refusal) as refusal:
        await call
    return refusal.value


@dataclass
class Bench:
    """An agent and everything around it."""

    agent: Agent
    engine: FakeEngine
    clock: FakeClock
    registry: CollectorRegistry
    root: Path
    ended: list[str] = field(default_factory=list)
    _sequence: Any = field(default_factory=lambda: itertools.count(1))

    def epoch(self) -> Epoch:
        return Epoch(term=1, sequence=next(self._sequence))

    @property
    def state(self) -> WorkerState:
        return state_of(self.agent, worker="w", instance="i", pod_uid="uid-0", started=0)

    async def stage(self, version: str, path: Path | None = None, **named: str) -> Path:
        path = path or write_tiny(self.root / version, float(len(version)))
        source = Source(path=str(path))
        request = StageRequest(version=version, source=source, epoch=self.epoch(), **named)
        await self.agent.stage(request)
        return path

    async def pause(
        self,
        mode: PauseMode = PauseMode.KEEP,
        *,
        lease: float = 30,
        drain: float = 60,
        holder: str = "operator",
    ) -> None:
        request = PauseRequest(
            mode=mode,
            lease_seconds=lease,
            drain_timeout_seconds=drain,
            holder=holder,
            epoch=self.epoch(),
        )
        await self.agent.pause(request)

    async def load(self, version: str, *, holder: str = "operator", **named: str) -> None:
        request = LoadRequest(version=version, holder=holder, epoch=self.epoch(), **named)
        await self.agent.load(request)

    async def apply(self, version: str, *, mode: PauseMode = PauseMode.KEEP, **named: str) -> None:
        request = ApplyRequest(
            version=version, mode=mode, lease_seconds=30, epoch=self.epoch(), **named
        )
        await self.agent.apply(request)

    async def resume(self, version: str, *, holder: str = "operator", **named: str) -> None:
        request = OpenRequest(version=version, holder=holder, epoch=self.epoch(), **named)
        await self.agent.open(request, Event.RESUME)

    async def admit(self, version: str, **named: str) -> None:
        request = OpenRequest(version=version, epoch=self.epoch(), **named)
        await self.agent.open(request, Event.ADMIT)

    async def fence(self, *, drain: float = 0) -> None:
        request = FenceRequest(reason="a test", drain_timeout_seconds=drain, epoch=self.epoch())
        await self.agent.fence(request)

    async def probe(self, *prompts: str) -> ProbeReport | None:
        request = ProbeRequest(prompts=prompts or ("x",), max_tokens=8, epoch=self.epoch())
        await self.agent.probe(request)
        return self.state.probe


@dataclass
class Trainer:
    """A driver of a serving worker, and what its transfers need."""

    bench: Bench
    driver: Driver
    transfers: Transfers

    @classmethod
    def of(cls, bench: Bench, **options: Any) -> Trainer:
        room = options.pop("room", TransferRoom())
        management = options.pop("management", Management.EXTERNAL)
        transfers = Transfers(bench.agent, room)
        bench.agent.on_released = transfers.give_up
        driver = Driver(bench.agent, transfers, DriverRules(management, lease_seconds=60))
        return cls(bench, driver, transfers)


@asynccontextmanager
async def a_bench(
    folder: Path, wrap: Callable[[FakeEngine], Any] | None = None
) -> AsyncIterator[Bench]:
    """A worker whose engine has come up; `wrap` puts something between the two."""
    rules, initial = tiny_rules(folder, TinyInspector())
    engine, clock, registry = FakeEngine(), FakeClock(), CollectorRegistry()
    ended: list[str] = []
    metrics = WorkerMetrics(registry)
    driven = wrap(engine) if wrap is not None else engine
    agent = Agent(driven, initial, rules, clock=clock, metrics=metrics, end_process=ended.append)
    metrics.watch(agent)
    await agent.ready()
    yield Bench(agent, engine, clock, registry, folder, ended)
    await agent.staging.drop()
    if agent.good.checkpoint is not None:
        agent.good.checkpoint.close()


@pytest.fixture
async def joining(tmp_path: Path) -> AsyncIterator[Bench]:
    """A worker whose engine has come up."""
    async with a_bench(tmp_path) as bench:
        yield bench


@pytest.fixture
async def serving(joining: Bench) -> Bench:
    """A worker that was admitted on the model's own weights; its engine's calls begin here."""
    await joining.admit("base")
    joining.engine.calls.clear()
    return joining


@pytest.fixture
async def trainer(serving: Bench) -> Trainer:
    return Trainer.of(serving)


def step(trainer: Trainer, number: int, value: float = 1.0) -> str:
    """Weights that the trainer has written."""
    return str(write_tiny(trainer.bench.root / f"step_{number}", value))
