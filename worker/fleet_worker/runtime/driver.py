"""A trainer that drives this worker itself: its verbs, whatever surface they come by.

They work where the fleet's weights are managed by `External`, under the same lock, latch, checks
and rules as the operator's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet_worker.core.fencing import Lease
from fleet_worker.protocol import PauseMode, Phase
from fleet_worker.runtime.driver_files import FilesDriver, checked_label
from fleet_worker.runtime.driver_seat import DriverRules


class Driver(FilesDriver):
    """All verbs; these move weights over a collective."""

    async def join_transfer(self, who: str, info: Mapping[str, Any]) -> None:
        """Join a trainer's group."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.join(info)

    async def leave_transfer(self, who: str) -> None:
        """Leave the trainer's group."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.leave()

    async def begin_transfer(self, who: str) -> None:
        """Make the model ready to receive; a worker that serves is paused until the end of it."""
        self.check_may_drive()
        self.transfers.check_ready()
        serves = self.agent.phase is Phase.SERVING
        await self.pause(who, PauseMode.KEEP, keep_cache=self.keeps_cache)
        async with self.agent.lock:
            self.agent.check_holder(who)
            now = self.agent.clock()
            expires = now + self.rules.lease_seconds
            await self.transfers.begin(Lease(PauseMode.KEEP, who, now, expires))
            # Some trainers pause and resume by themselves; those that do neither expect that
            # generating goes on.
            self._pauses_for_update = serves

    async def receive(self, who: str, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights."""
        self.check_may_drive()
        await self.renew(who)
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.receive(info)

    async def end_transfer(self, who: str, label: str | None) -> str:
        """All has been received; paused as it was before."""
        self.check_may_drive()
        label = checked_label(label) if label is not None else None
        await self.renew(who)
        async with self.agent.lock:
            self.agent.check_holder(who)
            label = await self.transfers.end(label)
        if self._pauses_for_update:
            await self.resume(who)
        return label


__all__ = ["Driver", "DriverRules"]
