"""What a worker looks at by itself: leases that run out, and whether its engine lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from fleet_worker.core.liveness import Pulse
from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import Phase
from fleet_worker.runtime.agent import Agent

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25
_PING_SECONDS = 5.0
_REST_SECONDS = 60.0
"""So long may ending the requests of a closed worker take, all tries together."""
_TRY_AGAIN_SECONDS = 1.0


class Watch:
    """Runs beside the agent until the process ends."""

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
        loading = agent.standing.phase in (Phase.LOADING, Phase.BROKEN) and agent.work is not None
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
            group.create_task(self._rests())
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
            except Exception as failure:  # noqa: BLE001 - leases are watched to the end
                _LOG.error("a pause could not be ended: %s", failure)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _rests(self) -> None:
        """Go on ending the requests of a closed worker; end the process if they do not end."""
        agent = self._agent
        seeking: asyncio.Task[None] | None = None
        try:
            while True:
                since = agent.not_at_rest_since
                if since is not None and agent.clock() - since >= _REST_SECONDS:
                    seconds = f"{_REST_SECONDS:.0f} s"
                    self._end_process(
                        f"the engine of a closed worker is not at rest after {seconds}"
                    )
                    return
                if since is not None and (seeking is None or seeking.done()):
                    seeking = asyncio.ensure_future(self._seek_rest())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            if seeking is not None:
                seeking.cancel()

    async def _seek_rest(self) -> None:
        try:
            await self._agent.seek_rest()
        except Exception as failure:  # noqa: BLE001 - it is tried again until the time is up
            _LOG.warning("the engine is not at rest yet: %s", failure)
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _death(self) -> None:
        try:
            while not self._agent.engine.is_dead:  # noqa: ASYNC110 - vLLM only sets a flag
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            # vLLM may notice first and end its server, and this task with it.
            if self._agent.engine.is_dead:
                self._end_process("the engine process died")

    async def _pings(self) -> None:
        """One ping after the other; one that never returns is what `problem` notices."""
        while True:
            try:
                await self._agent.engine.ping()
                self._pulse = replace(self._pulse, answered=self._agent.clock())
            except EngineFailure as failure:
                _LOG.warning("the engine did not answer: %s", failure.message)
            await asyncio.sleep(min(_PING_SECONDS, self._silence_seconds / 4))
