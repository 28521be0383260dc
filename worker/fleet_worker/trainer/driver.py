"""The calls of a trainer that updates this worker itself, the same for every dialect.

They work in an External fleet, under the same lock, latch and checks as the operator's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.fencing import Lease
from fleet_worker.protocol import PauseMode, Phase
from fleet_worker.trainer.driver_files import FilesDriver, checked_label
from fleet_worker.trainer.driver_seat import DriverRules, DriverSeat
from fleet_worker.trainer.transfers import Transfers


class CollectiveDriver:
    """The calls that send weights over a collective."""

    def __init__(self, seat: DriverSeat) -> None:
        self._seat = seat
        self._pauses_for_update = False

    async def join_transfer(self, trainer: str, info: Mapping[str, Any]) -> None:
        """Join the trainer's process group."""
        self._seat.check_may_drive()
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            await self._seat.transfers.join(info)

    async def leave_transfer(self, trainer: str) -> None:
        """Leave the trainer's process group."""
        self._seat.check_may_drive()
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            await self._seat.transfers.leave()

    async def begin_transfer(self, trainer: str) -> None:
        """Prepare the model to receive weights. A serving worker is paused until the transfer ends."""
        self._seat.check_may_drive()
        self._seat.transfers.check_ready()
        was_serving = self._seat.agent.phase is Phase.SERVING
        await self._seat.pause(trainer, PauseMode.KEEP, keep_cache=self._seat.keeps_cache)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            now = self._seat.agent.clock()
            expires = now + self._seat.rules.lease_seconds
            await self._seat.transfers.begin(Lease(PauseMode.KEEP, trainer, now, expires))
            # A trainer that did not pause the worker will not resume it either.
            self._pauses_for_update = was_serving

    async def receive(self, trainer: str, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some of the weights."""
        self._seat.check_may_drive()
        await self._seat.renew(trainer)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            await self._seat.transfers.receive(info)

    async def end_transfer(self, trainer: str, label: str | None) -> str:
        """End the transfer and return the version. The worker is then paused or serving as before."""
        self._seat.check_may_drive()
        label = checked_label(label) if label is not None else None
        await self._seat.renew(trainer)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            label = await self._seat.transfers.end(label)
        if self._pauses_for_update:
            await self._seat.resume(trainer)
        return label


class Driver:
    """All calls of a trainer.

    Fields:
        seat: the calls that load no weights.
        files: the calls that load weights and LoRA adapters from directories.
        collective: the calls that send weights over a collective.
    """

    def __init__(self, agent: Agent, transfers: Transfers, rules: DriverRules) -> None:
        self.seat = DriverSeat(agent, transfers, rules)
        self.files = FilesDriver(self.seat)
        self.collective = CollectiveDriver(self.seat)


__all__ = ["Driver", "DriverRules"]
