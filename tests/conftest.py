"""Settings of all tests."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Other work on the machine must fail no test: no example has a deadline.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# The tests themselves are a million objects that stay. A collection need not walk through them each time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _others() -> frozenset[threading.Thread]:
    """The threads that earlier tests have left."""
    return frozenset(threading.enumerate()) - {threading.current_thread()}


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, _others: frozenset[threading.Thread]
) -> Iterator[pytest.LogCaptureFixture]:
    """Without the lines of threads that earlier tests have left."""

    def is_ours(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in _others

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)
