"""Attempts that are repeated wait ever longer, until their effect has lasted."""

from __future__ import annotations

import itertools

import pytest

from fleet_operator.runtime.attempts import (
    FIRST_SECONDS,
    FORGOTTEN_SECONDS,
    KEPT,
    LASTS_SECONDS,
    LONGEST_SECONDS,
    REPORTED_SECONDS,
    Attempts,
)


def tried_without_effect(seconds: float) -> list[float]:
    """When something is done within `seconds` that is tried as soon as it may be."""
    attempts, now, done = Attempts[str](), 0.0, []
    while now < seconds:
        if not attempts.wait_seconds("a", now):
            attempts.begin("a", now)
            done.append(now)
        now += 0.01
    return done


def test_without_an_effect_the_waits_double_up_to_a_limit():
    gaps = [b - a for a, b in itertools.pairwise(tried_without_effect(60))]

    assert gaps[0] == pytest.approx(FIRST_SECONDS, abs=0.02)
    assert gaps[1] == pytest.approx(2 * FIRST_SECONDS, abs=0.02)
    assert gaps[-1] == pytest.approx(LONGEST_SECONDS, abs=0.02)
    assert all(b >= a - 0.02 for a, b in itertools.pairwise(gaps))


def test_what_had_its_effect_may_be_repeated_once_at_once():
    attempts = Attempts[str]()
    attempts.begin("a", 0).note_shown()

    assert attempts.wait_seconds("a", 0.01) == 0
    attempts.begin("a", 0.01)
    assert attempts.wait_seconds("a", 0.02) == pytest.approx(FIRST_SECONDS - 0.01)


def test_an_effect_that_has_lasted_ends_the_account():
    attempts = Attempts[str]()
    for n in range(10):
        attempts.begin("a", n).note_shown()
    assert attempts.of("a").count == 10

    assert attempts.begin("a", 9 + LASTS_SECONDS).count == 1


def test_attempts_without_an_effect_count_until_there_was_none_for_long():
    attempts = Attempts[str]()
    for n in range(3):
        attempts.begin("a", 10.0 * n)

    assert attempts.begin("a", 20 + FORGOTTEN_SECONDS - 1).count == 4
    assert attempts.begin("a", 100 + 2 * FORGOTTEN_SECONDS).count == 1


def test_attempts_before_an_effect_do_not_count_as_ones_that_did_not_last():
    attempts = Attempts[str]()
    for n in range(20):
        attempts.begin("a", n * LONGEST_SECONDS)
    attempt = attempts.of("a")
    attempt.note_shown()

    assert not attempt.is_undone(attempt.last_at)
    assert not attempt.lasts


def test_they_last_after_a_minute_and_some_attempts():
    attempts = Attempts[str]()
    attempts.begin("a", 0)
    attempts.begin("a", FORGOTTEN_SECONDS - 1)
    attempts.of("a").last_at = REPORTED_SECONDS  # its answer comes late
    assert not attempts.of("a").lasts, "two lost answers prove little"
    attempts.begin("a", REPORTED_SECONDS)
    assert attempts.of("a").lasts
    for n in range(10):
        attempts.begin("b", n * REPORTED_SECONDS / 10)
    assert not attempts.of("b").lasts
    attempts.begin("b", REPORTED_SECONDS)
    assert attempts.of("b").lasts


def test_any_number_of_attempts_has_a_wait():
    attempts = Attempts[str]()
    for n in range(5000):
        attempts.begin("a", n)

    assert attempts.wait_seconds("a", 4999) == LONGEST_SECONDS


def test_the_oldest_keys_are_forgotten():
    attempts = Attempts[int]()
    for n in range(10 * KEPT):
        attempts.begin(n, float(n))

    assert len(attempts._known) == KEPT
    assert attempts.of(0) is None
