"""Reads large answers one at a time, so that they leave the event loop its turns.

The answers of a fleet's workers come at the same moment, and reading all of them at once would stop the loop
for as long as all take together. A thread would not help: the parser holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from fleet_operator.turns import Turns
from fleet_worker.http.byte_budget import ByteBudget

SMALL_BYTES = 4 * 1024
"""An answer of up to this size is read at once, in about 0.1 ms. A state without adapters has 2 KiB."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Limit for all answers that wait. Beyond it the largest are dropped."""


@dataclass(slots=True)
class _Waiting:
    """One answer."""

    namespace: str
    read: Callable[[], None]
    drop: Callable[[], None]


class AnswersInTurn:
    """Answers that wait to be read. Namespaces take turns."""

    def __init__(self) -> None:
        self._turns: Turns[int] = Turns(1)
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._budget: ByteBudget[int] = ByteBudget(
            max_bytes=MAX_WAITING_BYTES, small_bytes=SMALL_BYTES
        )

    def add(
        self, namespace: str, size_bytes: int, read: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        """Read an answer: at once, or in a later turn of the loop if it is large.

        `drop`: called instead if too many bytes wait.
        """
        if size_bytes <= SMALL_BYTES:
            read()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._read_one)
        number = next(self._numbers)
        self._waiting[number] = _Waiting(namespace, read, drop)
        self._turns.add((namespace,), number)
        for largest in self._budget.charge(number, size_bytes):
            dropped = self._waiting[largest]
            dropped.drop()
            dropped.read = _nothing  # it may hold the bytes

    def _read_one(self) -> None:
        number = self._turns.take()
        if number is None:
            return
        waiting = self._waiting.pop(number)
        self._turns.leave((waiting.namespace,))
        self._budget.release(number)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._read_one)
        waiting.read()


def _nothing() -> None:
    pass
