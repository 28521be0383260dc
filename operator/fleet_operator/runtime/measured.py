"""Measures the processor time of a coroutine, without the time in which it waits."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from functools import partial
from time import thread_time
from typing import Any


class Measured:
    """A coroutine to await once. Tasks that it begins are not counted.

    Fields:
        seconds: the processor time that it has taken so far.
    """

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.seconds = 0.0
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        """Run it to its end. Errors: its own."""
        step = partial(self._work.send, None)
        while True:
            began = thread_time()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self.seconds += thread_time() - began
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - passed on, a cancellation, too
                step = partial(self._work.throw, error)
