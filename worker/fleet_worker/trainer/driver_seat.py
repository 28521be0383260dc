"""The calls of a trainer that load no weights: authorization, lease, pause and resume.

A trainer sends no epoch, so its calls get the newest epoch of the worker. Its address identifies
it as the holder of a lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import sleeping
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.holding import Outcome
from fleet_worker.lifecycle.states import Event
from fleet_worker.protocol import (
    Epoch,
    Management,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    Reason,
)
from fleet_worker.trainer.transfers import Transfers


@dataclass(frozen=True, slots=True)
class DriverRules:
    """Rules for the calls of trainers.

    Fields:
        management: trainers may update the worker only with `External`.
        lease_seconds: how long a pause lasts without another call of its trainer.
    """

    management: Management
    lease_seconds: float


class DriverSeat:
    """The calls that load no weights. `trainer` is an address; refusals show it to other trainers."""

    def __init__(self, agent: Agent, transfers: Transfers, rules: DriverRules) -> None:
        self.agent = agent
        self.transfers = transfers
        self.rules = rules

    # --- queries -------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether the worker does not generate."""
        return self.agent.phase not in (Phase.SERVING, Phase.PAUSING)

    @property
    def is_healthy(self) -> bool:
        """Whether a trainer may begin: the engine is alive and the worker is admitted."""
        return self.agent.is_open and not self.agent.engine.is_dead

    def check_may_drive(self) -> None:
        """Refuse with `NotYoursToDrive` in a fleet whose weights the operator manages."""
        if self.rules.management is not Management.EXTERNAL:
            raise Refusal(
                Reason.NOT_YOURS_TO_DRIVE,
                "the operator manages the weights of this fleet: publish versions through its"
                " WeightVersion or the fleet's control address, or set the fleet's"
                " spec.weights.management to External",
            )

    # --- pausing -------------------------------------------------------------------------------

    async def pause(self, trainer: str, mode: PauseMode, *, keep_cache: bool = False) -> int:
        """Stop generating; returns the number of held requests.

        A joining worker does not generate, so the call changes nothing and succeeds. A trainer
        that updates all its workers can also update this one.
        """
        self.check_may_drive()
        if self.agent.phase is not Phase.JOINING:
            lease = self.rules.lease_seconds
            request = PauseRequest(
                mode=mode,
                drain_timeout_seconds=lease,
                lease_seconds=lease,
                holder=trainer,
                epoch=self.epoch,
            )
            await self.agent.pause(request, keep_cache=keep_cache)
        return self.agent.requests()[1]

    async def resume(self, trainer: str) -> None:
        """Generate again. For a joining worker this does nothing: it waits for the operator."""
        self.check_may_drive()
        agent = self.agent
        if agent.phase is Phase.JOINING and agent.load_failure is None:
            return
        if self.transfers.is_open:
            raise Refusal(Reason.WRONG_PHASE, "a weight update is in progress; finish it first")
        if agent.phase is Phase.JOINING or agent.version is None:
            raise Refusal(
                Reason.BROKEN,
                "the last load failed inside the engine; the worker waits until the operator admits"
                " it again",
            )
        request = OpenRequest(version=agent.version, holder=trainer, epoch=self.epoch)
        await agent.open(request, Event.RESUME)

    async def sleep(self, trainer: str, level: int, mode: PauseMode) -> None:
        """Pause, and free the accelerator's memory."""
        self.check_may_drive()
        sleeping.check_level(level)
        await self.pause(trainer, mode)
        async with self.agent.lock:
            await sleeping.sleep(self.agent, level)

    async def wake(self, trainer: str, tags: Sequence[str] | None) -> None:
        """Take the memory back; generate again once the whole engine is awake."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(trainer)
            awake = await sleeping.ensure_awake(self.agent, tags)
        if awake:
            await self.resume(trainer)

    # --- other calls ---------------------------------------------------------------------------

    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; returns whether the engine did."""
        self.check_may_drive()
        async with self.agent.lock:
            done = await self.agent.engine.drop_prefixes(running=running)
            if done:
                self.agent.kept.clear_prefixes()
        return done

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests with the tokens they have; returns how many were named."""
        self.check_may_drive()
        waiting = self.agent.held.end(Outcome.TURNED_AWAY, request_ids)
        ended = await self.agent.engine.abort(request_ids)
        return ended + waiting if request_ids is None else ended

    @property
    def epoch(self) -> Epoch:
        """The newest epoch that this worker has seen."""
        return self.agent.epoch or Epoch(term=0, sequence=0)

    @property
    def keeps_cache(self) -> bool:
        """Whether the current pause keeps the KV cache."""
        lease = self.agent.lease
        return lease is not None and lease.cache_kept

    async def renew(self, trainer: str) -> None:
        """Renew the lease of the current pause, if there is one."""
        if self.agent.lease is not None:
            await self.pause(trainer, PauseMode.KEEP, keep_cache=self.keeps_cache)
