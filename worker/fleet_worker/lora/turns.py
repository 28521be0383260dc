"""The order of the calls for each LoRA adapter: a later call supersedes the earlier ones.

Reading an adapter may take long, and the calls for one name do not wait for each other. So an earlier
call may be ready after a later one has been answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet_worker.errors import Refusal
from fleet_worker.protocol import AdapterRequest, Reason


class Turns:
    """The numbers of the running calls, and what the last call for each name asks."""

    def __init__(self) -> None:
        """Start without any call."""
        self._numbers = itertools.count()
        self._running: set[int] = set()
        self._last: dict[str, tuple[int, Hashable]] = {}

    @contextmanager
    def turn(self) -> Iterator[int]:
        """The number of a call, which is larger than those of all earlier calls."""
        number = next(self._numbers)
        self._running.add(number)
        try:
            yield number
        finally:
            self._running.remove(number)
            if not self._running:  # no call is left that any of them could supersede
                self._last.clear()

    def check(self, name: str, turn: int, asked: Hashable) -> None:
        """Record what a call asks, unless a later call for the name asks something else.

        Equal calls do not supersede each other. Errors: Refusal `Superseded`.
        """
        last, last_asked = self._last.get(name, (turn, asked))
        if turn < last and asked != last_asked:
            raise Refusal(
                Reason.SUPERSEDED, f"a later call for LoRA adapter {name} superseded this one"
            )
        if turn >= last:
            self._last[name] = (turn, asked)


@dataclass(frozen=True, slots=True)
class PutCall:
    """One call that loads or stages an adapter.

    Fields:
        by_directory: see `LoraCalls.put`.
        check_last: refuses the call with `Superseded` after a later call for the name.
    """

    name: str
    request: AdapterRequest
    by_directory: bool
    check_last: Callable[[], None]
