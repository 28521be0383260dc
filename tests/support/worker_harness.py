"""A worker over a fake engine, with a clock that the tests move."""

from __future__ import annotations

import asyncio
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

from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.lifecycle.state_document import StateGauges, state_of
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.watchdog import Watch
from fleet_worker.protocol import (
    ApplyRequest,
    Epoch,
    FenceRequest,
    LoadRequest,
    Management,
    OpenRequest,
    PauseMode,
    PauseRequest,
    PromptsReport,
    PromptsRequest,
    Source,
    StageRequest,
    WorkerState,
)
from fleet_worker.trainer.driver import Driver, DriverRules
from fleet_worker.trainer.transfers import TransferRoom, Transfers

HOLDER = "trainer at 10.0.0.1"
OTHER_HOLDER = "trainer at 10.0.0.2"


async def refused(call: Any) -> Refusal:
    """Why a call was refused."""
    with pytest.raises(Refusal) as refusal:
        await call
    return refusal.value


async def failing(call: Any) -> EngineFailure:
    """How a call failed in the engine."""
    with pytest.raises(EngineFailure) as failure:
        await call
    return failure.value


@dataclass
class WorkerHarness:
    """An agent and everything around it."""

    agent: Agent
    engine: FakeEngine
    clock: FakeClock
    registry: CollectorRegistry
    root: Path
    ended: list[str] = field(default_factory=list)
    instance: str = "i"
    _sequence: Any = field(default_factory=lambda: itertools.count(1))

    def epoch(self) -> Epoch:
        return Epoch(term=1, sequence=next(self._sequence))

    @property
    def state(self) -> WorkerState:
        return state_of(self.agent, worker="w", instance=self.instance, pod_uid="uid-0", started=0)

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

    async def staged_in_a_pause(self, version: str) -> Path:
        """Stage a version, and pause for its load."""
        path = await self.stage(version)
        await self.pause()
        return path

    async def loaded_in_a_pause(self, version: str) -> Path:
        """Stage a version, pause, and load it."""
        path = await self.staged_in_a_pause(version)
        await self.load(version)
        return path

    async def swap(self, version: str, path: Path | None = None, **named: str) -> None:
        """Bring a version into a worker that serves, call by call."""
        await self.stage(version, path, **named)
        await self.pause()
        await self.load(version, **named)
        await self.resume(version, **named)

    async def run_prompts(
        self, *prompts: str, compare_with: str = "base", **named: str
    ) -> PromptsReport | None:
        request = PromptsRequest(
            prompts=prompts or ("x",),
            max_tokens=8,
            compare_with=compare_with,
            epoch=self.epoch(),
            **named,
        )
        await self.agent.run_prompts(request)
        return self.state.probe


@dataclass
class TrainerHarness:
    """A driver of a serving worker, and what its transfers need."""

    harness: WorkerHarness
    driver: Driver
    transfers: Transfers

    def __post_init__(self) -> None:
        driver = self.driver
        self.seat, self.files, self.collective = driver.seat, driver.files, driver.collective

    async def begin_update(self) -> None:
        """Join a group, and begin an update over it."""
        await self.collective.join_transfer(HOLDER, {})
        await self.collective.begin_transfer(HOLDER)

    async def update(self, label: str | None) -> None:
        """Send a whole update over a new group."""
        await self.begin_update()
        await self.collective.end_transfer(HOLDER, label)

    @classmethod
    def of(cls, harness: WorkerHarness, **options: Any) -> TrainerHarness:
        room = options.pop("room", TransferRoom())
        management = options.pop("management", Management.EXTERNAL)
        transfers = Transfers(harness.agent, room)
        harness.agent.on_released = transfers.cancel
        driver = Driver(harness.agent, transfers, DriverRules(management, lease_seconds=60))
        return cls(harness, driver, transfers)


@asynccontextmanager
async def start_worker(
    folder: Path, wrap: Callable[[FakeEngine], Any] | None = None
) -> AsyncIterator[WorkerHarness]:
    """A worker whose engine has come up; `wrap` puts something between the two."""
    rules, initial = tiny_rules(folder, TinyInspector())
    engine, clock, registry = FakeEngine(), FakeClock(), CollectorRegistry()
    ended: list[str] = []
    metrics = WorkerMetrics(registry)
    driven = wrap(engine) if wrap is not None else engine
    agent = Agent(driven, initial, rules, clock=clock, metrics=metrics, end_process=ended.append)
    metrics.registry.register(StateGauges(agent))
    await agent.ready()
    yield WorkerHarness(agent, engine, clock, registry, folder, ended)
    await agent.staging.drop()
    if agent.good.checkpoint is not None:
        agent.good.checkpoint.close()


def step(trainer: TrainerHarness, number: int, value: float = 1.0) -> str:
    """Weights that the trainer has written."""
    return str(write_tiny(trainer.harness.root / f"step_{number}", value))


def stage_request(version: str, path: Path, digest: str | None = None) -> StageRequest:
    source = Source(path=str(path))
    return StageRequest(
        version=version, source=source, digest=digest, epoch=Epoch(term=1, sequence=1)
    )


def watchdog_of(harness: WorkerHarness) -> Watch:
    return Watch(
        harness.agent, silence_seconds=60, load_seconds=600, end_process=harness.ended.append
    )


@asynccontextmanager
async def running(watch: Watch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
