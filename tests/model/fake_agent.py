"""A fake worker behind the real worker's own admin API.

The real `operator_api` reads the calls, chooses the method of the agent, and makes the answers. So no fake
can drop a field, or miss a call of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.model.fake_state import Ticket
from tests.model.fake_worker import FakeWorker

from fleet_worker.admin.api import Api
from fleet_worker.admin.operator import operator_api
from fleet_worker.errors import EngineFailure, Refusal, status_of
from fleet_worker.lifecycle.states import Event
from fleet_worker.protocol import (
    AdapterRemoval,
    AdapterRequest,
    ApplyRequest,
    Epoch,
    FenceRequest,
    LoadRequest,
    OpenRequest,
    PauseRequest,
    Phase,
    PromptsRequest,
    Reason,
    Request,
    StageRequest,
    WantedRequest,
)

TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it came in."""

    at: float
    ticket: Ticket

    @property
    def kind(self) -> str:
        """The kind of the call."""
        return self.ticket.kind

    @property
    def epoch(self) -> Epoch:
        """The epoch of the call."""
        epoch: Epoch = getattr(self.ticket.request, "epoch")  # noqa: B009 - every request has one
        return epoch

    @property
    def taken(self) -> bool:
        """Whether the worker followed, or follows, the call."""
        return self.ticket.reason is None


class FakeAgent:
    """The calls of the real `Agent`, carried out by a fake worker. `clock`: monotonic seconds."""

    def __init__(self, worker: FakeWorker, clock: Callable[[], float]) -> None:
        self.worker = worker
        self.calls: list[Call] = []
        self._clock = clock

    @property
    def phase(self) -> Phase:
        """As the probes show it."""
        return self.worker.phase

    @property
    def is_open(self) -> bool:
        """Whether the latch is open."""
        return self.worker.admitted

    async def stage(self, request: StageRequest) -> None:
        """`PUT stage`."""
        await self._take(request)

    async def pause(self, request: PauseRequest) -> None:
        """`PUT pause`."""
        await self._take(request)

    async def load(self, request: LoadRequest) -> None:
        """`PUT load`."""
        await self._take(request)

    async def apply(self, request: ApplyRequest) -> None:
        """`PUT apply`."""
        await self._take(request)

    async def open(self, request: OpenRequest, _: Event) -> None:
        """`PUT resume` and `PUT admit`."""
        await self._take(request)

    async def fence(self, request: FenceRequest) -> None:
        """`PUT fence`."""
        await self._take(request)

    async def hear(self, request: WantedRequest) -> None:
        """`PUT wanted`."""
        self.worker.hear(request)

    async def run_prompts(self, request: PromptsRequest) -> None:
        """`PUT probe`."""
        await self._take(request)

    async def put_adapter(self, name: str, request: AdapterRequest) -> None:
        """`PUT adapters/{name}`."""
        await self._take(request, adapter=name)

    async def remove_adapter(self, name: str, request: AdapterRemoval) -> None:
        """`DELETE adapters/{name}`."""
        await self._take(request, adapter=name)

    async def _take(self, request: Request, *, adapter: str = "") -> None:
        worker = self.worker
        ticket = worker.take(request, self._clock(), adapter=adapter)
        self.calls.append(Call(at=self._clock(), ticket=ticket))
        while not ticket.done:
            await asyncio.sleep(TICK_SECONDS)
            worker.tick(self._clock())
        if ticket.reason is not None:
            _refuse(ticket.reason)

    def api(self) -> Api:
        """The operator's API of this worker."""
        agent: Any = self  # `operator_api` needs no more of an agent than these calls

        async def drain() -> None:
            self.worker.drain()

        return operator_api(agent, lambda: self.worker.state(self._clock()), drain)


def _refuse(reason: Reason) -> NoReturn:
    """Errors: the one with which the real worker would answer."""
    if status_of(reason) >= 500:
        raise EngineFailure("the fake engine failed", touched=True, reason=reason)
    raise Refusal(reason, "refused by the fake worker")
