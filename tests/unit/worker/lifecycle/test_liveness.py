"""Limits after which a worker counts as dead."""

from __future__ import annotations

import pytest

from fleet_worker.lifecycle.watchdog import Pulse


@pytest.mark.parametrize(
    ("pulse", "now", "problem"),
    [
        pytest.param(Pulse(100), 150, None, id="a short silence is not a failure"),
        pytest.param(Pulse(100), 161, "has not answered for 61 s", id="a long silence is"),
        pytest.param(Pulse(100, dead=True), 100, "dead", id="death is seen at once"),
        pytest.param(Pulse(100, busy_since=110), 500, None, id="a load may take its time"),
        pytest.param(Pulse(100, busy_since=110), 1111, "1001 s", id="but not for ever"),
        pytest.param(Pulse(500, busy_since=110), 1400, None, id="unless it answers meanwhile"),
    ],
)
def test_a_worker_is_dead_after_its_time_limit(
    pulse: Pulse, now: float, problem: str | None
) -> None:
    found = pulse.problem(now, threshold=60, busy_threshold=1000)

    assert (found is None) == (problem is None)
    if problem is not None and found is not None:
        assert problem in found
