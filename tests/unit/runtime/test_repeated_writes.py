"""Writes that do not last wait ever longer, and are reported with their cause."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.counted_calls import operator_calls

from fleet_operator.errors import Retryable, WriteUndone
from fleet_operator.runtime.attempts import FIRST_SECONDS, LASTS_SECONDS
from fleet_operator.runtime.repeated_writes import MOST_WRITES, RepeatedWrites

pytestmark = pytest.mark.virtual_time


async def test_one_that_was_changed_back_once_is_repeated_at_once():
    writes = RepeatedWrites[str]()
    assert writes.wait_seconds("a") == 0
    writes.note("a", "Service a")
    assert writes.wait_seconds("a") == 0
    assert writes.error_of("a") is None
    writes.note("a", "Service a")
    error = writes.error_of("a")
    assert isinstance(error, Retryable)
    assert error.after_seconds == FIRST_SECONDS
    assert writes.undone() == []


async def test_one_that_was_changed_back_repeatedly_is_a_problem_until_it_has_lasted():
    writes = RepeatedWrites[str]()
    for _ in range(3):
        writes.note("a", "Service a")
    (error,) = writes.undone()
    assert isinstance(error, WriteUndone)
    assert "Service a: another controller" in str(error)
    await asyncio.sleep(LASTS_SECONDS)
    assert writes.undone() == []
    assert writes.wait_seconds("a") == 0


def test_twice_as_many_writes_cost_twice_as_much_and_their_memory_is_bounded():
    def cost_of(number: int) -> int:
        writes = RepeatedWrites[int](clock=lambda: 0.0)
        with operator_calls() as calls:
            for key in range(number):
                writes.note(key, "Service a")
        assert len(writes._titles) <= 2 * MOST_WRITES
        return calls[0]

    assert cost_of(400) <= 2.2 * cost_of(200)
    cost_of(4 * MOST_WRITES)


async def test_one_that_was_not_stored_is_a_problem_at_once_while_it_is_needed():
    writes = RepeatedWrites[str]()
    writes.note("a", "Service a", lost="its port did not change")
    (error,) = writes.undone()
    assert "its port did not change: an admission webhook" in str(error)
    assert writes.wait_seconds("a") == FIRST_SECONDS
    await asyncio.sleep(LASTS_SECONDS)
    assert writes.undone(), "it is still missing"
    writes.keep_missing(["a"])
    assert writes.undone()
    writes.keep_missing([])
    assert writes.undone() == []


async def test_a_forgotten_one_is_the_first_one_again():
    writes = RepeatedWrites[str]()
    for _ in range(3):
        writes.note("a", "Service a")
    writes.forget("a")

    assert writes.wait_seconds("a") == 0
    assert writes.undone() == []
