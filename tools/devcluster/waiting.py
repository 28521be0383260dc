"""Waiting for something to become true, with a deadline. Tests use it instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], object], timeout_seconds: float, what: str) -> None:
    """Wait until the condition holds.

    Args:
        condition: called every 0.05 s; its exceptions end the wait.
        timeout_seconds: how long to ask.
        what: the end of the error message "… waiting for WHAT".

    Errors:
        TimeoutError: with that sentence.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {timeout_seconds:.0f} s waiting for {what}")
        time.sleep(_POLL_SECONDS)
