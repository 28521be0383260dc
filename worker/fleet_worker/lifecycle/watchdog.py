"""The worker checks itself: expired leases, requests after a fence, and a dead or hung engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from fleet_worker.errors import EngineFailure
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.settling import settle
from fleet_worker.protocol import Phase


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last sign of life of the engine, in seconds of the monotonic clock.

    Fields:
        answered: When the engine last answered a round trip.
        dead: Whether the engine's process has ended.
        busy_since: Begin of work during which the engine does not answer (a load), else None.
    """

    answered: float
    dead: bool = False
    busy_since: float | None = None

    def problem(self, now: float, *, threshold: float, busy_threshold: float) -> str | None:
        """Return the reason to restart the worker, or None.

        Args:
            now: Monotonic seconds.
            threshold: Longest silence in seconds.
            busy_threshold: Longest silence in seconds while a load runs.
        """
        if self.dead:
            return "the engine process is dead"
        if self.busy_since is not None:
            silent = now - max(self.busy_since, self.answered)
            limit = busy_threshold
        else:
            silent = now - self.answered
            limit = threshold
        if silent > limit:
            return f"the engine has not answered for {silent:.0f} s"
        return None


_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.25
_PING_SECONDS = 5.0
_IDLE_TIMEOUT_SECONDS = 60.0
"""How long a closed worker tries to end its requests before it ends its process."""
_TRY_AGAIN_SECONDS = 1.0
_SETTLE_SECONDS = 0.05
"""How often a worker with leftovers of a load looks for the end of its pause."""


class Watch:
    """Checks leases, requests and the engine until the process ends."""

    def __init__(
        self,
        agent: Agent,
        *,
        silence_seconds: float,
        load_seconds: float,
        end_process: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._silence_seconds = silence_seconds
        self._load_seconds = load_seconds
        self._end_process = end_process
        self._pulse = Pulse(answered=agent.clock())

    def problem(self) -> str | None:
        """Why the worker should be restarted, or None."""
        agent = self._agent
        loading = agent.phase in (Phase.LOADING, Phase.BROKEN) and agent.work is not None
        pulse = replace(
            self._pulse,
            dead=agent.engine.is_dead,
            busy_since=agent.work.started if loading and agent.work is not None else None,
        )
        return pulse.problem(
            agent.clock(), threshold=self._silence_seconds, busy_threshold=self._load_seconds
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leases())
            group.create_task(self._leftover_requests())
            group.create_task(self._leftovers_of_loads())
            group.create_task(self._death())
            group.create_task(self._pings())

    async def _leases(self) -> None:
        agent = self._agent
        while True:
            agent.changed.clear()
            lease = agent.lease
            left = None if lease is None else max(0.01, lease.remaining(agent.clock()))
            try:
                async with asyncio.timeout(left):
                    await agent.changed.wait()
                continue
            except TimeoutError:
                pass
            try:
                await agent.expire_lease()
            except Exception as failure:  # noqa: BLE001 - later leases must be checked too
                _LOG.error(
                    "a pause with an expired lease could not be ended; the worker tries again in"
                    " %.0f s: %s",
                    _TRY_AGAIN_SECONDS,
                    failure,
                )
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _leftover_requests(self) -> None:
        """End the requests of a closed worker, and end the process if they do not end."""
        agent = self._agent
        ending: asyncio.Task[None] | None = None
        try:
            while True:
                since = agent.not_idle_since
                if since is not None and agent.clock() - since >= _IDLE_TIMEOUT_SECONDS:
                    seconds = f"{_IDLE_TIMEOUT_SECONDS:.0f} s"
                    self._end_process(
                        f"the engine still has requests {seconds} after the latch was closed"
                    )
                    return
                if since is not None and (ending is None or ending.done()):
                    ending = asyncio.ensure_future(self._end_leftover_requests())
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            if ending is not None:
                ending.cancel()

    async def _leftovers_of_loads(self) -> None:
        """Let the engine let go of what a load has used, and compare, as soon as requests may run."""
        agent = self._agent
        while True:
            await agent.unsettled.wait()
            try:
                await settle(agent)
            except Exception as failure:  # noqa: BLE001 - later loads must be settled, too
                _LOG.warning("the engine did not let go of the bytes of a load: %s", failure)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
            await asyncio.sleep(_SETTLE_SECONDS)

    async def _end_leftover_requests(self) -> None:
        try:
            await self._agent.end_leftover_requests()
        except Exception as failure:  # noqa: BLE001 - the caller tries again until the timeout
            _LOG.warning("the engine of the closed worker still has requests: %s", failure)
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _death(self) -> None:
        try:
            while not self._agent.engine.is_dead:  # noqa: ASYNC110 - vLLM only sets a flag
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            # vLLM may notice first: its server then ends and cancels this task.
            if self._agent.engine.is_dead:
                self._end_process("the engine process died")

    async def _pings(self) -> None:
        """Send one ping after the other. `problem` notices a ping that does not return."""
        while True:
            try:
                await self._agent.engine.ping()
                self._pulse = replace(self._pulse, answered=self._agent.clock())
            except EngineFailure as failure:
                _LOG.warning("the engine did not answer a ping: %s", failure.message)
            await asyncio.sleep(min(_PING_SECONDS, self._silence_seconds / 4))
