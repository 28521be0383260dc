"""Requests in flight: a limited number at once, each with one end, and batches that wait for a moment."""

from __future__ import annotations

import asyncio

from tests.support import virtual_time
from tests.support.virtual_time import now

from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.in_flight import ConcurrencyLimit, RequestBatch, RequestInFlight


class Fleet:
    """Flights over a limit, by number. `sent`, `ended`: in their order; None for a cancelled one."""

    def __init__(self, most: int) -> None:
        self.limit = ConcurrencyLimit(most)
        self.under_way: set[RequestInFlight] = set()
        self.sent: list[int] = []
        self.ended: list[tuple[int, str | None]] = []
        self.answers: dict[int, asyncio.Future[WorkerAnswer]] = {}

    def flight(self, number: int) -> RequestInFlight:
        def send() -> asyncio.Future[WorkerAnswer]:
            self.sent.append(number)
            self.answers[number] = asyncio.get_running_loop().create_future()
            return self.answers[number]

        def ended(answer: WorkerAnswer | None) -> None:
            self.ended.append((number, answer.message if answer else None))

        flight = RequestInFlight(send, ended, self.under_way, self.limit)
        flight.begin()
        return flight

    async def answer(self, number: int) -> None:
        self.answers[number].set_result(WorkerAnswer(message=f"answer {number}"))
        await asyncio.sleep(0)


def test_no_more_go_at_once_than_may_and_the_others_in_their_order():
    async def story() -> None:
        fleet = Fleet(2)
        for number in range(5):
            fleet.flight(number)
        assert fleet.sent == [0, 1]
        await fleet.answer(1)
        assert fleet.sent == [0, 1, 2]
        for number in (0, 2, 3, 4):
            await fleet.answer(number)
        assert fleet.sent == [0, 1, 2, 3, 4]
        assert fleet.under_way == set()
        assert dict(fleet.ended) == {n: f"answer {n}" for n in range(5)}

    virtual_time.run(story())


def test_a_cancelled_flight_ends_once_and_frees_its_slot():
    async def story() -> None:
        fleet = Fleet(1)
        flight, _ = fleet.flight(0), fleet.flight(1)
        flight.cancel()
        assert fleet.ended == [(0, None)]
        assert flight.done()
        assert flight not in fleet.under_way
        await asyncio.sleep(0)
        assert fleet.answers[0].cancelled()
        assert fleet.sent == [0, 1]
        flight.cancel()
        await fleet.answer(1)
        assert fleet.ended == [(0, None), (1, "answer 1")]

    virtual_time.run(story())


def test_thousands_of_flights_cancelled_before_their_turn_are_never_sent():
    async def story() -> None:
        fleet = Fleet(1)
        first, *others = [fleet.flight(n) for n in range(5000)]
        for flight in others:
            flight.cancel()
        await fleet.answer(0)
        assert first.done()
        fleet.flight(5000)
        assert fleet.sent == [0, 5000]

    virtual_time.run(story())


def test_an_answer_that_comes_while_its_flight_is_cancelled_is_dropped():
    async def story() -> None:
        fleet = Fleet(1)
        flight = fleet.flight(0)
        fleet.answers[0].set_result(WorkerAnswer(message="too late"))
        flight.cancel()
        await asyncio.sleep(0)
        assert fleet.ended == [(0, None)]
        fleet.flight(1)
        assert fleet.sent == [0, 1]

    virtual_time.run(story())


def test_a_round_waits_for_a_moment_and_says_what_ends_after_it():
    async def story() -> None:
        late: list[float] = []
        sent, started = RequestBatch(lambda _: late.append(now() - started)), now()
        for seconds in (0.1, 0.2, 3):
            sent.add()
            asyncio.get_running_loop().call_later(seconds, sent.end)
        assert await sent.wait_for_ends(1) == 1
        assert now() - started == 1
        await asyncio.sleep(5)
        assert late == [3]

    virtual_time.run(story())


def test_a_round_that_has_ended_waits_for_nothing():
    async def story() -> None:
        sent, started = RequestBatch(lambda _: None), now()
        assert await sent.wait_for_ends(1) == 0
        sent = RequestBatch(lambda _: None)
        sent.add()
        sent.end()
        assert await sent.wait_for_ends(1) == 0
        assert now() == started
        sent = RequestBatch(lambda _: None)
        sent.add()
        asyncio.get_running_loop().call_later(0.25, sent.end)
        assert await sent.wait_for_ends(1) == 0
        assert now() - started == 0.25

    virtual_time.run(story())
