"""Requests that arrive during a pause. They wait in front of the engine, in every mode of the pause.

Inside the engine a later call could end them without a token. A repeated pause of mode `abort` ends all
requests that the engine has. And some releases of vLLM refuse new ones during such a pause.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

_REMEMBERED = 1024
_PREFIXES = ("cmpl-", "chatcmpl-", "generate-tokens-")
"""vLLM puts them before the id of a request."""


class Outcome(Enum):
    """The end of a request's wait."""

    LET_IN = "let in"
    """The worker generates again."""
    TURNED_AWAY = "turned away"
    """The latch is closed, or a trainer ends requests: another try may succeed."""
    ABORTED = "aborted"
    """The client itself has ended it."""


class Holding:
    """The requests that wait for the end of a pause."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Outcome], frozenset[str]] = {}
        self._aborted: OrderedDict[str, frozenset[str]] = OrderedDict()
        """The ids that clients have aborted, with those that they are made from."""

    @property
    def count(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @contextmanager
    def place(self, ids: Iterable[str] = ()) -> Iterator[asyncio.Future[Outcome]]:
        """A place for a request while the block runs; the future has the end of its wait.

        `ids`: those that the client gave.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[future] = frozenset(ids)
        try:
            yield future
        finally:
            self._waiting.pop(future, None)

    def end(self, outcome: Outcome, ids: Iterable[str] | None = None) -> int:
        """End the wait of requests with these ids, or of all for None; returns their number."""
        wanted = None if ids is None else frozenset[str]().union(*map(origins_of, ids))
        chosen = [
            future
            for future, own in self._waiting.items()
            if wanted is None or not own.isdisjoint(wanted)
        ]
        for future in chosen:
            del self._waiting[future]
            if not future.done():
                future.set_result(outcome)
        return len(chosen)

    def abort(self, ids: Iterable[str]) -> None:
        """A client aborts requests of its own, which may wait here or be in the engine."""
        ids = list(ids)
        self.end(Outcome.ABORTED, ids)
        for each in ids[-_REMEMBERED:]:
            self._aborted[each] = origins_of(each)
            self._aborted.move_to_end(each)
        while len(self._aborted) > _REMEMBERED:
            self._aborted.popitem(last=False)

    def is_aborted(self, request_id: str) -> bool:
        """Whether a client has aborted the request that the engine knows by this id."""
        return not self._aborted.keys().isdisjoint(origins_of(request_id))

    @property
    def remembers_aborts(self) -> bool:
        """Whether there is an id to forget."""
        return bool(self._aborted)

    def forget(self, ids: Iterable[str]) -> None:
        """Forget the aborts of requests with these ids: a new request has them."""
        own = frozenset(ids)
        for each in [a for a, origins in self._aborted.items() if not own.isdisjoint(origins)]:
            del self._aborted[each]


def origins_of(made: str) -> frozenset[str]:
    """The ids from which vLLM may have made this one, and itself: `cmpl-<id>-0`, `chatcmpl-<id>_1`, `<id>`."""
    number = r"-\d+\Z" if made.startswith("cmpl-") else r"_\d+\Z"
    whole = {made, re.sub(number, "", made)}
    return frozenset(whole | {each.removeprefix(p) for each in whole for p in _PREFIXES})
