"""Requests in flight: a limited number at once, each with one end, and batches that wait for a moment."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.support.virtual_time import now

from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.in_flight import ConcurrencyLimit, RequestBatch, RequestInFlight

pytestmark = pytest.mark.virtual_time


class Flights:
    """Flights over a limit, by number. `sent`, `ended`: in their order; None for a cancelled one."""

    def __init__(self, most: int) -> None:
        self.limit = ConcurrencyLimit(most)
        self.under_way: set[RequestInFlight] = set()
        self.sent: list[int] = []
        self.ended: list[tuple[int, str | None]] = []
        self.answers: dict[int, asyncio.Future[WorkerAnswer]] = {}

    def flight(self, number: int, namespace: str = "rl", fleet: str = "policy") -> RequestInFlight:
        def send() -> asyncio.Future[WorkerAnswer]:
            self.sent.append(number)
            self.answers[number] = asyncio.get_running_loop().create_future()
            return self.answers[number]

        def ended(answer: WorkerAnswer | None) -> None:
            self.ended.append((number, answer.message if answer else None))

        flight = RequestInFlight((namespace, fleet), send, ended, self.under_way, self.limit)
        flight.begin()
        return flight

    async def answer(self, number: int) -> None:
        self.answers[number].set_result(WorkerAnswer(message=f"answer {number}"))
        await asyncio.sleep(0)


async def test_no_more_go_at_once_than_may_and_the_others_in_their_order():
    flights = Flights(3)
    for number in range(5):
        flights.flight(number)
    assert flights.sent == [0, 1, 2]
    await flights.answer(1)
    assert flights.sent == [0, 1, 2, 3]
    for number in (0, 2, 3, 4):
        await flights.answer(number)
    assert flights.sent == [0, 1, 2, 3, 4]
    assert flights.under_way == set()
    assert dict(flights.ended) == {n: f"answer {n}" for n in range(5)}


@pytest.mark.parametrize("silent", [1, 2, 5, 20, 100])
async def test_namespaces_whose_workers_are_silent_leave_a_third_of_their_share_to_the_others(
    silent,
):
    most = 1024
    flights = Flights(most)
    for number in range(silent * most):
        flights.flight(number, f"silent-{number % silent}")
    held = Counter(number % silent for number in flights.sent)
    free = most - held.total()
    assert max(held.values()) - min(held.values()) <= 1
    assert free >= min(held.values()) // 3
    for number in range(silent * most, silent * most + free):
        flights.flight(number, f"other-{number}")
    assert len(flights.sent) == most


async def test_a_namespace_with_many_silent_fleets_gets_no_more_than_one_with_a_single_one():
    flights = Flights(1024)
    for number in range(2000):
        flights.flight(number, "many", f"silent-{number % 50}")
    for number in range(2000, 4000):
        flights.flight(number, "one")
    held = Counter(number < 2000 for number in flights.sent)
    assert 700 < held[True] <= 768
    assert held[False] > 0.6 * (1024 - held[True])
    for number in range(700):
        await flights.answer(number)
    held = Counter(n < 2000 for n in flights.answers if not flights.answers[n].done())
    assert max(held.values()) < 1.5 * min(held.values())


async def test_silent_fleets_of_a_namespace_leave_places_to_its_other_fleets():
    flights = Flights(1024)
    for number in range(2000):
        flights.flight(number, fleet="silent")
    silent = len(flights.sent)
    assert silent < 768
    flights.flight(2000, fleet="other")
    assert flights.sent[-1] == 2000


async def test_a_namespace_that_comes_after_a_silent_one_is_served_at_once_and_before_it():
    flights = Flights(1024)
    for number in range(4000):
        flights.flight(number, f"silent-{number // 1000}")
    flights.flight(4000, "other")
    assert flights.sent[-1] == 4000
    assert all(number in flights.sent for number in (1000, 2000, 3000))
    for number in range(100):
        await flights.answer(number)
    assert len([n for n in flights.sent if n < 1000]) < 768  # it has more than its share


async def test_freed_places_go_to_the_namespaces_with_the_fewest_in_turn():
    flights = Flights(4)
    for number in range(10):
        flights.flight(number, "first")
    for number in range(10, 20):
        flights.flight(number, "second")
    for number in (20, 21):
        flights.flight(number, "third")
    assert flights.sent == [0, 1, 2, 10]
    for number in (0, 1, 2, 10):
        await flights.answer(number)
    assert flights.sent[4:] == [20, 3, 11, 21]  # the fewest places come first
    for number in (3, 11):
        await flights.answer(number)
    assert flights.sent[8:] == [4, 12]


async def test_a_cancelled_flight_ends_once_and_frees_its_slot():
    flights = Flights(1)
    flight, _ = flights.flight(0), flights.flight(1)
    flight.cancel()
    assert flights.ended == [(0, None)]
    assert flight.done()
    assert flight not in flights.under_way
    await asyncio.sleep(0)
    assert flights.answers[0].cancelled()
    assert flights.sent == [0, 1]
    flight.cancel()
    await flights.answer(1)
    assert flights.ended == [(0, None), (1, "answer 1")]


async def test_thousands_of_flights_cancelled_before_their_turn_are_never_sent():
    flights = Flights(1)
    first, *others = [flights.flight(n) for n in range(5000)]
    for flight in others:
        flight.cancel()
    await flights.answer(0)
    assert first.done()
    flights.flight(5000)
    assert flights.sent == [0, 5000]


async def test_an_answer_that_comes_while_its_flight_is_cancelled_is_dropped():
    flights = Flights(1)
    flight = flights.flight(0)
    flights.answers[0].set_result(WorkerAnswer(message="too late"))
    flight.cancel()
    await asyncio.sleep(0)
    assert flights.ended == [(0, None)]
    flights.flight(1)
    assert flights.sent == [0, 1]


async def test_a_round_waits_for_a_moment_and_says_what_ends_after_it():
    late: list[float] = []
    sent, started = RequestBatch(lambda _: late.append(now() - started)), now()
    for seconds in (0.1, 0.2, 3):
        sent.add()
        asyncio.get_running_loop().call_later(seconds, sent.end)
    assert await sent.wait_for_ends(1) == 1
    assert now() - started == 1
    await asyncio.sleep(5)
    assert late == [3]


async def test_a_round_that_has_ended_waits_for_nothing():
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
