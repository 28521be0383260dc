"""Time of the event loop is shared among namespaces, once two of them use it."""

from __future__ import annotations

from collections import Counter

import pytest

from fleet_operator.time_shares import TimeShares


def used(tenants: dict[str, float], *, seconds: float = 60.0) -> Counter[str]:
    """The time that tenants get in a loop. `tenants`: what one run costs; they always have another one."""
    shares, now, total = TimeShares(), 0.0, Counter[str]()
    while now < seconds:
        began = now
        for name, cost_seconds in tenants.items():
            if not shares.wait_seconds(name, now):
                now += cost_seconds
                total[name] += cost_seconds
                shares.note(name, cost_seconds, now)
        if now == began:
            now += max(0.001, min(shares.wait_seconds(name, now) for name in tenants))
    return total


def test_a_namespace_alone_is_not_held_back():
    assert used({"a": 0.01})["a"] > 59.9


@pytest.mark.parametrize("number", [2, 3, 5])
def test_busy_namespaces_get_the_same_and_leave_as_much_idle(number):
    total = used({f"n{n}": 0.01 for n in range(number)})

    assert max(total.values()) == pytest.approx(60 / (number + 1), rel=0.1)
    assert min(total.values()) == pytest.approx(60 / (number + 1), rel=0.1)


def test_a_namespace_with_costly_runs_gets_no_more_than_one_with_cheap_runs():
    total = used({"costly": 0.1, "cheap": 0.001})

    assert total["costly"] < 1.3 * total["cheap"]


def test_a_namespace_that_uses_little_never_waits_for_one_that_uses_all():
    shares, now = TimeShares(), 0.0
    for _ in range(1000):
        now += 0.01
        if not shares.wait_seconds("busy", now):
            shares.note("busy", 0.01, now)
        if not int(now * 100) % 10:
            assert shares.wait_seconds("quiet", now) == 0
            shares.note("quiet", 0.002, now)


def test_after_the_wait_it_may_go_on():
    shares = TimeShares()
    shares.note("other", 0.1, 0.0)
    shares.note("busy", 3.0, 0.0)
    wait = shares.wait_seconds("busy", 0.0)

    assert wait > 0.5
    assert shares.wait_seconds("busy", wait / 2) == pytest.approx(wait / 2)
    assert shares.wait_seconds("busy", wait + 0.001) == 0


def test_namespaces_that_rest_are_forgotten():
    shares = TimeShares()
    for n in range(1000):
        shares.note(f"n{n}", 0.001, float(n))

    assert len(shares._used) < 30


def test_a_namespace_that_uses_little_does_not_wait_for_time_beyond_what_there_is():
    """Requests that run at once use more than a second in each second."""
    shares = TimeShares()
    shares.note("busy", 20.0, 0.0)
    shares.note("quiet", 0.02, 0.0)

    assert shares.wait_seconds("quiet", 0.0) == 0
    assert shares.wait_seconds("busy", 0.0) > 0
