"""How a worker counts the sessions that it serves."""

from __future__ import annotations

import pytest
from tests.support.clock import FakeClock

from fleet_worker.lifecycle import sessions
from fleet_worker.lifecycle.sessions import WINDOW_SECONDS, Sessions


def test_a_session_counts_once_and_until_it_was_quiet_for_the_window() -> None:
    clock = FakeClock()
    counted = Sessions(clock)
    counted.note(b"a")
    counted.note(b"b")
    clock.now += WINDOW_SECONDS
    counted.note(b"a")

    assert counted.count == 2
    clock.now += 1
    assert counted.count == 1
    clock.now += WINDOW_SECONDS
    assert counted.count == 0


def test_clients_that_make_up_names_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    counted = Sessions(FakeClock())
    for n in range(10):
        counted.note(b"%d" % n)

    assert counted.count == 3
