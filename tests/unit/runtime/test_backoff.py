"""Waits double up to a limit, and callers that failed together do not return together."""

from __future__ import annotations

from fleet_operator.runtime.backoff import MAX_ASKED_SECONDS, Backoff
from fleet_operator.runtime.kopf_watch import RandomWaits


def longest(_least: float, most: float) -> float:
    return most


def shortest(least: float, _most: float) -> float:
    return least


def test_a_wait_doubles_up_to_the_longest_and_starts_again_after_a_success():
    backoff = Backoff(1, 10, choose=longest)

    assert [backoff.next_seconds() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next_seconds() == 1


def test_no_wait_is_shorter_than_a_half_of_its_time():
    backoff = Backoff(1, 10, choose=shortest)

    assert [backoff.next_seconds() for _ in range(5)] == [0.5, 1, 2, 4, 5]


def test_the_wait_that_a_server_asks_for_is_added_up_to_a_minute():
    backoff = Backoff(1, 10, choose=longest)

    assert backoff.next_seconds(asked_seconds=3) == 4
    assert backoff.next_seconds(asked_seconds=86_400) == 2 + MAX_ASKED_SECONDS


def test_by_default_it_is_chosen_at_random():
    assert len({Backoff(1, 10).next_seconds() for _ in range(100)}) > 90


def test_the_requests_of_kopf_do_not_wait_alike_and_come_to_an_end():
    waits = RandomWaits()
    first, second = list(waits), list(waits)

    assert first != second
    assert len(first) == len(second) == RandomWaits.ATTEMPTS
    assert all(0 < w <= 10 for w in (*first, *second))
    assert all(20 <= sum(each) <= 43 for each in (first, second))
