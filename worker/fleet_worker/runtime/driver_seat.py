"""Who sits in the driver's seat: a trainer, its rights, its lease; pausing and resuming.

A trainer knows no epochs: its calls count as of the newest one. It is known by its address, and
holds the worker by the lease of its pause like everybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import (
    Epoch,
    Management,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    Reason,
)
from fleet_worker.runtime import sleeping
from fleet_worker.runtime.agent import Agent
from fleet_worker.runtime.transferring import Transfers


@dataclass(frozen=True, slots=True)
class DriverRules:
    """How trainers may drive.

    Fields:
        lease_seconds: how long a pause of theirs lasts without another call.
    """

    management: Management
    lease_seconds: float


class DriverSeat:
    """The verbs that move no weights. `who` is whom a second driver is told about."""

    def __init__(self, agent: Agent, transfers: Transfers, rules: DriverRules) -> None:
        self.agent = agent
        self.transfers = transfers
        self.rules = rules
        self._pauses_for_update = False

    # --- asking --------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether nothing generates."""
        return self.agent.phase not in (Phase.SERVING, Phase.PAUSING)

    @property
    def is_healthy(self) -> bool:
        """Whether a trainer may begin: the engine is alive, and the worker was admitted."""
        return self.agent.is_open and not self.agent.engine.is_dead

    def check_may_drive(self) -> None:
        """Refuse with `NotYoursToDrive` where the operator brings the weights."""
        if self.rules.management is not Management.EXTERNAL:
            raise Refusal(
                Reason.NOT_YOURS_TO_DRIVE,
                "the operator manages the weights of this fleet: publish versions to it, by its"
                " WeightVersion or the fleet's control address; or set the fleet's"
                " spec.weights.management to External",
            )

    # --- pausing -------------------------------------------------------------------------------

    async def pause(self, who: str, mode: PauseMode, *, keep_cache: bool = False) -> int:
        """Stop generating; how many requests are held.

        A worker that was not admitted yet generates nothing, and is told so as often as it is
        asked: a trainer that updates all its workers may update this one, too.
        """
        self.check_may_drive()
        if self.agent.phase is not Phase.JOINING:
            lease = self.rules.lease_seconds
            request = PauseRequest(
                mode=mode,
                drain_timeout_seconds=lease,
                lease_seconds=lease,
                holder=who,
                epoch=self.epoch,
            )
            await self.agent.pause(request, keep_cache=keep_cache)
        return self.agent.requests()[1]

    async def resume(self, who: str) -> None:
        """Generate again. A worker that was not admitted yet waits for the operator."""
        self.check_may_drive()
        agent = self.agent
        if agent.phase is Phase.JOINING and agent.load_failure is None:
            return
        if self.transfers.is_open:
            raise Refusal(Reason.WRONG_PHASE, "an update has begun and is not finished")
        if agent.phase is Phase.JOINING or agent.version is None:
            raise Refusal(
                Reason.BROKEN,
                "the last load failed inside the engine; this worker waits to be admitted again",
            )
        request = OpenRequest(version=agent.version, holder=who, epoch=self.epoch)
        await agent.open(request, Event.RESUME)

    async def sleep(self, who: str, level: int, mode: PauseMode) -> None:
        """Pause, and give the accelerator's memory up."""
        self.check_may_drive()
        sleeping.check_level(level)
        await self.pause(who, mode)
        async with self.agent.lock:
            await sleeping.sleep(self.agent, level)

    async def wake(self, who: str, tags: Sequence[str] | None) -> None:
        """Take the memory back, and generate again once all is back."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            awake = await sleeping.ensure_awake(self.agent, tags)
        if awake:
            await self.resume(who)

    # --- small matters -------------------------------------------------------------------------

    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; whether it was done."""
        self.check_may_drive()
        async with self.agent.lock:
            done = await self.agent.engine.drop_prefixes(running=running)
            if done:
                self.agent.kept.clear()
        return done

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests with what they have; how many were named."""
        self.check_may_drive()
        return await self.agent.engine.abort(request_ids)

    @property
    def epoch(self) -> Epoch:
        """The newest that this worker has seen."""
        return self.agent.epoch or Epoch(term=0, sequence=0)

    @property
    def keeps_cache(self) -> bool:
        """Whether the pause that there is keeps the cache."""
        lease = self.agent.lease
        return lease is not None and lease.cache_kept

    async def renew(self, who: str) -> None:
        """A call of the holder keeps its pause alive."""
        if self.agent.lease is not None:
            await self.pause(who, PauseMode.KEEP, keep_cache=self.keeps_cache)
