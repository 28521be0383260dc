"""The end of a worker: its requests finish or are ended before its process ends."""

from __future__ import annotations

import asyncio
import logging

from fleet_worker.lifecycle.holding import Outcome
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import Phase

_LOG = logging.getLogger(__name__)


async def drain(
    worker: Worker, *, patience_seconds: float, drain_timeout_seconds: float = 0
) -> float:
    """Let requests finish until the timeout, then end them. The process ends next.

    Args:
        worker: The worker.
        patience_seconds: How long it may take to end the requests that remain.
        drain_timeout_seconds: How long requests may keep running. Held requests continue too,
            with the weights in the engine. If these weights cannot be trusted, all requests
            end at once.

    Returns:
        The unused part of `patience_seconds`.
    """
    worker.close_latch(cut=drain_timeout_seconds == 0)
    if drain_timeout_seconds > 0:
        await _let_requests_finish(worker, drain_timeout_seconds)
    worker.quiescence.drain_timed_out = True
    worker.close_latch()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    try:
        async with asyncio.timeout_at(deadline), worker.lock:
            worker.enter(Event.DRAIN)
            with worker.working("drain"):
                await worker.quiescence.reach(worker.engine)
    except Exception as error:  # noqa: BLE001 - the process ends next in any case
        _LOG.warning("the drain ended early: %s", error, extra=fields("drain_cut_short"))
    finally:
        worker.enter(Event.DRAIN)
    worker.adapters.close()
    return max(0.0, deadline - loop.time())


async def _let_requests_finish(worker: Worker, seconds: float) -> None:
    """Wait until all requests have ended, at most for the given time.

    Raises nothing, except when it is cancelled.
    """
    try:
        async with asyncio.timeout(seconds), worker.lock:
            has_held = not worker.is_idle and worker.phase in (Phase.PAUSED, Phase.JOINING)
            trusted = worker.version is not None and worker.phase is not Phase.BROKEN
            worker.enter(Event.DRAIN)
            with worker.working("drain"):
                if has_held and trusted and not worker.asleep:
                    await worker.engine.resume()
                    worker.generates = True
                    worker.held.end(Outcome.LET_IN)
                if trusted:
                    await worker.quiescence.wait_until_empty(seconds, cut=worker.cut)
    except TimeoutError:
        _LOG.info(
            "requests still run at the drain timeout; the worker ends them",
            extra=fields("drain_timeout"),
        )
    except Exception as error:  # noqa: BLE001 - the requests are ended next in any case
        _LOG.warning("the drain ended early: %s", error, extra=fields("drain_cut_short"))
