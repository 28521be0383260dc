"""`caplog` leaves out the lines of threads from before the test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest


def logs(name: str) -> None:
    logging.getLogger(name).warning("a line")


@pytest.fixture(scope="module")
def left_over() -> Iterator[Callable[[], None]]:
    """A thread from before the test, and what lets it log and end."""
    may_end = threading.Event()

    def last_words() -> None:
        may_end.wait()
        logs("left over")

    thread = threading.Thread(target=last_words)
    thread.start()

    def end() -> None:
        may_end.set()
        thread.join()

    yield end
    end()


def test_a_test_sees_its_own_threads_lines_and_none_of_earlier_ones(
    left_over: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    left_over()
    own = threading.Thread(target=logs, args=["own"])
    own.start()
    own.join()

    assert [record.name for record in caplog.records] == ["own"]
