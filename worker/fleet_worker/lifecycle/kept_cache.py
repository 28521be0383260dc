"""Track the weights whose keys and values an engine may still read.

A driver may keep the cache over a load (`clear_cache=false`). From then on the engine may compute a
token of the new weights from keys and values of older ones. The token's span then also names the
oldest of these weights.

```
load 2, cache kept   oldest = 1     tokens of 2 read keys and values of 1
load 3, cache kept   oldest = 1     tokens of 3 may read those of 1
load 1 again, kept   oldest = 1     tokens of 1 may read those of 2, and say so
cleared              oldest = None  requests that begin later read their own
```

There are two such caches. Keys and values belong to a prefix of tokens, and vLLM counts how many of
them a request found. The outputs of a multimodal encoder belong to an image alone. vLLM does not count
them, and keeps them when a driver drops the prefixes. So a request with an image may always have read
them.

If the cache is cleared while a request runs, the engine computes its keys and values again. The span
still names the weights that its earlier tokens may have read, because a span has one answer for all
its tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Beginning:
    """State of the caches when a request came to the engine."""

    prefixes: _State
    encoder: _State


@dataclass(frozen=True, slots=True)
class _State:
    """State of one cache.

    Fields:
        moment: number of loads and clearings before the request.
        clean: whether the cache held nothing of older weights.
    """

    moment: int
    clean: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """Older weights that tokens of a version may have read.

    Fields:
        oldest: the oldest of these weights.
        since: moment of the version's load.
        until: moment of the next clearing. Requests that begin later do not read the old ones.
    """

    oldest: str
    since: int
    until: int | None = None


class KeptCache:
    """Remembers which loads kept the caches, and which weights filled them."""

    def __init__(self) -> None:
        self._prefixes = _Cache()
        self._encoder = _Cache()

    @property
    def oldest(self) -> str | None:
        """The oldest weights in the caches; None if they hold only those of the newest."""
        return self._encoder.oldest

    def loaded(self, version: str, previous: str | None, *, cleared: bool) -> None:
        """Note a load of new weights, and of which ones there were before."""
        for cache in (self._prefixes, self._encoder):
            cache.loaded(version, previous, cleared=cleared)

    def renamed(self, version: str, previous: str) -> None:
        """Note another label of the same weights."""
        for cache in (self._prefixes, self._encoder):
            cache.loaded(version, previous, cleared=cache.oldest is None)

    def clear(self) -> None:
        """Note that both caches were cleared."""
        self._prefixes.clear()
        self._encoder.clear()

    def clear_prefixes(self) -> None:
        """Note that the cached prefixes were dropped. The encoder's outputs stay."""
        self._prefixes.clear()

    def begin(self) -> Beginning:
        """Return the state of the caches for a request that comes now."""
        return Beginning(self._prefixes.state, self._encoder.state)

    def read_from(
        self, version: str, beginning: Beginning, *, found_cached: bool, has_media: bool = False
    ) -> str | None:
        """Return the oldest version whose keys, values or encoder outputs tokens may have read.

        Args:
            version: Label of the tokens.
            beginning: State of the caches when their request came.
            found_cached: Whether parts of the prompt may have come from the cached prefixes.
            has_media: Whether the prompt has images, audio or video.

        Returns:
            None if they read only those of their own version.
        """
        if has_media:
            return self._encoder.read_from(version, beginning.encoder, found_cached=True)
        return self._prefixes.read_from(version, beginning.prefixes, found_cached=found_cached)


class _Cache:
    """Remembers which loads kept one cache.

    Fields:
        state: of the cache for a request that comes now. It is made at a change, since each request asks.
    """

    def __init__(self) -> None:
        self._oldest: tuple[str, ...] = ()
        """The two oldest weights whose keys and values may be in the cache.

        Two, because a later load may bring one of them back.
        """
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._moment = 0
        self.state = _State(0, clean=True)

    @property
    def oldest(self) -> str | None:
        """The oldest weights in the cache; None if it holds only those of the newest."""
        return self._oldest[0] if self._oldest else None

    def loaded(self, version: str, previous: str | None, *, cleared: bool) -> None:
        """Note a load; see `KeptCache.loaded`."""
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
        self._note()

    def clear(self) -> None:
        """Note that the cache was cleared."""
        self._oldest = ()
        self._moment += 1
        for version, kept in self._kept.items():
            if kept.until is None:
                self._kept[version] = replace(kept, until=self._moment)
        self._note()

    def _note(self) -> None:
        self.state = _State(self._moment, clean=self.oldest is None)

    def read_from(self, version: str, beginning: _State, *, found_cached: bool) -> str | None:
        """See `KeptCache.read_from`."""
        kept = self._kept.get(version)
        if kept is None:
            return None
        if kept.until is not None and beginning.moment >= kept.until:
            return None
        if beginning.moment >= kept.since and (beginning.clean or not found_cached):
            return None
        return kept.oldest
