"""Measures the time in which a coroutine holds the event loop, without the time in which it waits.

It is not processor time. A process that gets a fifth of a processor runs a step of 20 ms for 100 ms, and all others
wait as long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST_STEP_SECONDS = 0.5
"""A longer step counts as one of this length: the process was stopped meanwhile, and no tenant has caused that."""


def held_seconds(began: float) -> float:
    """The time for which a step has held the event loop. `began`: when, as `time.monotonic` has it."""
    return min(monotonic() - began, LONGEST_STEP_SECONDS)


class Measured(Awaitable[T]):
    """A coroutine to await once. Tasks that it begins are not counted.

    Args:
        work: The coroutine.
        note: Called with the time of each step, in seconds.

    Fields:
        seconds: the time for which it has held the event loop so far.
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
            began = monotonic()
            try:
                awaited = step()
            except StopIteration as ended:
                result: T = ended.value
                return result
            finally:
                seconds = held_seconds(began)
                self.seconds += seconds
                self._note(seconds)
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - passed on, a cancellation, too
                step = partial(self._work.throw, error)
