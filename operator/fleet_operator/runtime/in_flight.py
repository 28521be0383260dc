"""Requests to workers in flight. They run without a task each, since a task costs more than a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.turns import Turns

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class InBackground:
    """How many requests to a fleet's workers continue in the background."""

    number: int = 0


class ConcurrencyLimit:
    """Sends at most `most` requests at once, and lets the others wait for their turns.

    Workers that are silent hold their places for long. So the places are shared among namespaces, and
    those of a namespace among its fleets (`Turns`).
    """

    def __init__(self, most: int) -> None:
        self._turns: Turns[RequestInFlight] = Turns(most)

    def enter(self, flight: RequestInFlight) -> None:
        """Send the request now, or when its turn comes."""
        self._turns.add(flight.fleet, flight)
        self._send()

    def leave(self, flight: RequestInFlight) -> None:
        """Send the next request after this one has ended."""
        self._turns.leave(flight.fleet)
        self._send()

    def _send(self) -> None:
        while (flight := self._turns.take()) is not None:
            if flight.done():
                self._turns.leave(flight.fleet)
            else:
                flight.go()


class RequestInFlight:
    """One request, from the decision to send it to its end.

    Fields:
        fleet: The fleet of the worker.
        answer: None until the request is sent.
    """

    __slots__ = ("_ended", "_failed", "_limit", "_send", "_under_way", "answer", "fleet")

    def __init__(
        self,
        fleet: FleetKey,
        send: Callable[[], Awaitable[WorkerAnswer]],
        ended: Callable[[WorkerAnswer | None], None],
        under_way: set[RequestInFlight],
        limit: ConcurrencyLimit | None = None,
        *,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Args:
        fleet: The fleet of the worker.
        send: Sends the request.
        ended: Called once with the answer; None if the request was cancelled.
        under_way: The set that contains it until its end.
        limit: The limit that it counts towards; None if it need not wait.
        failed: Called if sending it raises, which is a defect.
        """
        self.fleet = fleet
        self._send = send
        self._failed = failed
        self._under_way = under_way
        self._ended: Callable[[WorkerAnswer | None], None] | None = ended
        self._limit = limit
        self.answer: asyncio.Future[WorkerAnswer] | None = None

    def begin(self) -> None:
        """Send the request as soon as the limit allows it."""
        self._under_way.add(self)
        if self._limit is None:
            self.go()
        else:
            self._limit.enter(self)

    def go(self) -> None:
        """Send the request."""
        try:
            self.answer = asyncio.ensure_future(self._send())
        except Exception as error:  # noqa: BLE001 - reported where the answer is taken
            self.answer = asyncio.get_running_loop().create_future()
            self.answer.set_exception(error)
        self.answer.add_done_callback(self._take)

    def done(self) -> bool:
        """Whether it has ended or was cancelled."""
        return self._ended is None

    def cancel(self) -> None:
        """Cancel the request."""
        if self._ended is not None and self.answer is not None:
            self.answer.cancel()
        self._end(None)

    def _take(self, answer: asyncio.Future[WorkerAnswer]) -> None:
        if self._limit is not None:
            self._limit.leave(self)
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            logger.error("defect: a request to a worker failed", exc_info=error)
            if isinstance(error, Exception):
                self._failed(error)
        self._end(None if answer.cancelled() or error is not None else answer.result())

    def _end(self, answer: WorkerAnswer | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._under_way.discard(self)
            ended(answer)


class RequestBatch:
    """The requests of one reconcile, which waits a short time for their ends.

    `late`: called for each end after that time, with whether it may change a decision.
    """

    def __init__(self, late: Callable[[bool], None]) -> None:
        self._late = late
        self._left = 0
        self._is_late = False
        self._all_ended: asyncio.Future[None] | None = None

    def add(self) -> None:
        """Count one more request."""
        self._left += 1

    def end(self, *, may_change_decision: bool = True) -> None:
        """Note the end of a request, and whether it may change a decision."""
        self._left -= 1
        if self._is_late:
            self._late(may_change_decision)
        elif not self._left and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    async def wait_for_ends(self, seconds: float) -> int:
        """Wait for the ends of all requests, at most `seconds`. Returns: how many are left."""
        if self._left and seconds:
            self._all_ended = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_ended
        self._is_late = True
        return self._left
