"""Requests to workers in flight. They run without a task each, since a task costs more than a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable

from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.pod_informer import FleetKey

logger = logging.getLogger(__name__)

PLACES_FOR_EACH_FREE_ONE = 3


class ConcurrencyLimit:
    """Sends at most `most` requests at once. A fleet gets a place only while it has fewer of them than
    `PLACES_FOR_EACH_FREE_ONE` times the free places.

    The others wait: the requests of a fleet in order, and the fleets in turn. A fleet whose workers are
    silent holds its places for long. Alone it gets three quarters of them, and n such fleets get
    `3 * most / (3 * n + 1)` each. A third of such a share remains for the renewals of other fleets.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._sent: Counter[FleetKey] = Counter()
        self._waiting: OrderedDict[FleetKey, deque[RequestInFlight]] = OrderedDict()
        """No queue is empty. The fleet whose turn it is comes first."""

    def enter(self, flight: RequestInFlight) -> None:
        """Send the request now, or when its turn comes."""
        self._waiting.setdefault(flight.fleet, deque()).append(flight)
        self._send()

    def leave(self, flight: RequestInFlight) -> None:
        """Send the next request after this one has ended."""
        self._free += 1
        self._sent[flight.fleet] -= 1
        if not self._sent[flight.fleet]:
            del self._sent[flight.fleet]
        self._send()

    def _send(self) -> None:
        while (flight := self._next()) is not None:
            if not flight.done():
                self._free -= 1
                self._sent[flight.fleet] += 1
                flight.go()

    def _next(self) -> RequestInFlight | None:
        room = self._free * PLACES_FOR_EACH_FREE_ONE
        fleet = next((f for f in self._waiting if self._sent[f] < room), None)
        if fleet is None:
            return None
        flight = self._waiting[fleet].popleft()
        if self._waiting[fleet]:
            self._waiting.move_to_end(fleet)
        else:
            del self._waiting[fleet]
        return flight


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
