"""Measures the processor time of a coroutine, without the time in which it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from time import thread_time
from typing import Any, TypeVar

T = TypeVar("T")


class Measured(Awaitable[T]):
    """A coroutine to await once. Tasks that it begins are not counted.

    Args:
        work: The coroutine.
        note: Called with the processor time of each step, in seconds.

    Fields:
        seconds: the processor time that it has taken so far.
    """

    def __init__(
        self, work: Coroutine[Any, Any, T], note: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds = 0.0
        self._note = note
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        """Run it to its end. Errors: its own."""
        step = partial(self._work.send, None)
        while True:
            began = thread_time()
            try:
                awaited = step()
            except StopIteration as ended:
                result: T = ended.value
                return result
            finally:
                seconds = thread_time() - began
                self.seconds += seconds
                self._note(seconds)
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - passed on, a cancellation, too
                step = partial(self._work.throw, error)
