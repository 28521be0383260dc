"""Which weights' keys and values an engine may still be reading.

Whoever drives a worker may keep the cache over a load (`clear_cache=false`). From then on a token
of the new weights may be computed from keys and values of older ones, which its version alone does
not say; its span then names the oldest of them.

```
load 2, cache kept   oldest = 1     tokens of 2 read keys and values of 1
load 3, cache kept   oldest = 1     tokens of 3 may read those of 1
cleared              oldest = None  requests that begin from here on read their own
```

A request that is running when the cache is cleared is computed anew; its spans go on naming what
they may have read before: a span is one answer for all its tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Beginning:
    """What was true when a request came to the engine.

    Fields:
        version: label of the weights at that time.
        clean: nothing of older weights was in the cache.
    """

    version: str | None
    clean: bool


class KeptCache:
    """Remembers what was kept over which load."""

    def __init__(self) -> None:
        self.oldest: str | None = None
        """The oldest weights whose keys and values may be in the cache, if not only the newest."""
        self._kept: OrderedDict[str, str] = OrderedDict()

    def loaded(self, version: str, previous: str | None, *, cleared: bool) -> None:
        """Note a load.

        Args:
            version: Label of the new weights.
            previous: Label of the weights before.
            cleared: Nothing of older weights is left in the cache.
        """
        self._kept.pop(version, None)
        if cleared:
            self.oldest = None
            return
        self.oldest = self.oldest or previous
        if self.oldest is not None:
            self._kept[version] = self.oldest
        while len(self._kept) > _REMEMBERED:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Note that the cache was emptied."""
        self.oldest = None

    def begin(self, version: str | None) -> Beginning:
        """What a request that comes now begins with."""
        return Beginning(version, self.oldest is None)

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
        began_after = version == beginning.version
        if began_after and (beginning.clean or not found_cached):
            return None
        return kept
