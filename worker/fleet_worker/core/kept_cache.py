"""Which weights' keys and values an engine may still be reading.

Whoever drives a worker may keep the cache over a load (`clear_cache=false`). From then on a token
of the new weights may be computed from keys and values of older ones, which its version alone does
not say; its span then names the oldest of them.

```
load 2, cache kept   oldest = 1     tokens of 2 read keys and values of 1
load 3, cache kept   oldest = 1     tokens of 3 may read those of 1
load 1 again, kept   oldest = 1     tokens of 1 may read those of 2, and say so
cleared              oldest = None  requests that begin from here on read their own
```

A request that is running when the cache is cleared is computed anew; its spans go on naming what
they may have read before: a span is one answer for all its tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Beginning:
    """What was true when a request came to the engine.

    Fields:
        moment: how many loads and clearings there had been.
        clean: nothing of older weights was in the cache.
    """

    moment: int
    clean: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """What tokens of a version may have read.

    Fields:
        oldest: other weights.
        since: moment of the version's load.
        until: moment of the next clearing: who begins then reads nothing of this.
    """

    oldest: str
    since: int
    until: int | None = None


class KeptCache:
    """Remembers what was kept over which load."""

    def __init__(self) -> None:
        self._oldest: tuple[str, ...] = ()
        """The two oldest weights whose keys and values may be in the cache; one may come back."""
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._moment = 0

    @property
    def oldest(self) -> str | None:
        """The oldest weights whose keys and values may be in the cache, if not only the newest."""
        return self._oldest[0] if self._oldest else None

    def loaded(self, version: str, previous: str | None, *, cleared: bool) -> None:
        """Note a load.

        Args:
            version: Label of the new weights.
            previous: Label of the weights before.
            cleared: Nothing of older weights is left in the cache.
        """
        if cleared:
            self.clear()
            return
        self._moment += 1
        if previous is not None and previous not in self._oldest:
            self._oldest = (*self._oldest, previous)[:2]
        others = [each for each in self._oldest if each != version]
        if others:
            self._kept[version] = _Kept(others[0], self._moment)
            self._kept.move_to_end(version)
        while len(self._kept) > _REMEMBERED:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Note that the cache was emptied."""
        self._oldest = ()
        self._moment += 1
        for version, kept in self._kept.items():
            if kept.until is None:
                self._kept[version] = replace(kept, until=self._moment)

    def begin(self) -> Beginning:
        """What a request that comes now begins with."""
        return Beginning(self._moment, self.oldest is None)

    def read_from(self, version: str, beginning: Beginning, *, found_cached: bool) -> str | None:
        """The oldest version whose keys and values tokens of a version may have read.

        Args:
            version: Label of the tokens.
            beginning: Of their request.
            found_cached: The request's prompt was taken from the cache in part, or may have been.

        Returns:
            None if it is the version itself.
        """
        kept = self._kept.get(version)
        if kept is None:
            return None
        if kept.until is not None and beginning.moment >= kept.until:
            return None
        if beginning.moment >= kept.since and (beginning.clean or not found_cached):
            return None
        return kept.oldest
