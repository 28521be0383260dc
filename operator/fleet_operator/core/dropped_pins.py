"""The memory of a fleet for versions whose pins it drops: enough to ask for `spec.digest` again.

The status holds a bounded number of pins. A pin that is dropped leaves a mark, so that its version never
becomes free for other files: at or below a mark, a version without a pin needs `spec.digest`.

    numbers of a run     the highest one, in `runs`
    other versions       a few bits of `names`, at places that follow from the name (a Bloom filter)
    a run beyond `runs`  likewise: from then on each of its numbers needs a digest

`names` forgets nothing and never grows. It may take a new version for a dropped one: one of a hundred
after 3,000 names. Such a version needs `spec.digest`, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

from fleet_worker.protocol import Named, number_of
from rlfleet_resources.fleet_status import (
    MAX_DROPPED_RUNS,
    MAX_PINNED,
    MAX_PINNED_ADAPTERS,
    NAMES_BITS,
    DroppedPins,
    DroppedRun,
    PinnedAdapter,
    PinnedWeights,
)

P = TypeVar("P", bound=PinnedWeights)
Run = tuple[str, str | None]
"""An adapter, empty for the base weights, and its run."""
_NONE = DroppedPins()
_PLACES = 4
"""Bits of a name."""


@dataclass(frozen=True, slots=True)
class Bounded(Generic[P]):
    """Pins within their limit, and those that were dropped for it, which must leave a mark (`with_marks`)."""

    kept: tuple[P, ...]
    dropped: tuple[P, ...] = ()


def within_bounds(
    entries: Sequence[P], is_used: Callable[[P], bool], *, unread: int = 0
) -> Bounded[P]:
    """Returns the pins in use and the newest others, as many as a status holds, in their order.

    `unread`: places that pins have which cannot be read. They stay, too.
    """
    of_adapters = any(isinstance(entry, PinnedAdapter) for entry in entries[:1])
    room = MAX_PINNED_ADAPTERS if of_adapters else MAX_PINNED
    room -= unread + sum(map(is_used, entries))
    kept, dropped = list[P](), list[P]()
    for entry in entries:
        if is_used(entry):
            kept.append(entry)
        elif room > 0:
            kept.append(entry)
            room -= 1
        else:
            dropped.append(entry)
    return Bounded(tuple(kept), tuple(dropped))


def with_marks(
    before: DroppedPins | None, dropped: Iterable[PinnedWeights], *, in_use: Collection[Run] = ()
) -> DroppedPins | None:
    """Returns the memory after pins were dropped. None: nothing was ever dropped.

    `in_use`: runs that keep their place before all others, however long ago their last mark was made.
    """
    known = before or _NONE
    runs, names = list(known.runs), _bits_in(known.names)
    for pin in dropped:
        adapter = pin.adapter if isinstance(pin, PinnedAdapter) else ""
        number = number_of(pin.version)
        if number is None:
            names |= _bits_of(adapter, pin.run_id, pin.version)
        else:
            runs.append(DroppedRun(adapter=adapter, run_id=pin.run_id, up_to=number))
    made = _memory_of(runs, names, in_use)
    return before if made == known else made


def joined(
    one: DroppedPins | None, other: DroppedPins | None, *, in_use: Collection[Run] = ()
) -> DroppedPins | None:
    """Returns the memory of two statuses. `in_use`: see `with_marks`."""
    if one is None or other is None:
        return one or other
    names = _bits_in(one.names) | _bits_in(other.names)
    return _memory_of([*one.runs, *other.runs], names, in_use)


def _memory_of(marks: Iterable[DroppedRun], names: int, in_use: Collection[Run]) -> DroppedPins:
    """The memory with these marks, of which the last ones are the newest. Older runs become bits."""
    runs: dict[Run, DroppedRun] = {}
    for mark in marks:
        run = (mark.adapter, mark.run_id)
        known = runs.pop(run, mark)
        runs[run] = max(known, mark, key=lambda m: m.up_to)
    for run in sorted(runs, key=lambda run: run in in_use)[:-MAX_DROPPED_RUNS]:
        names |= _bits_of(*run)
        del runs[run]
    return DroppedPins(runs=tuple(runs.values()), names=f"{names:x}" if names else "")


def may_be_dropped(memory: DroppedPins | None, weights: Named, *, adapter: str = "") -> bool:
    """Whether a version without a pin may have had one. `adapter`: empty for base weights."""
    if memory is None:
        return False
    number = number_of(weights.version)
    if number is None:
        return _has(_bits_in(memory.names), _bits_of(adapter, weights.run_id, weights.version))
    up_to = highest_dropped(memory, weights.run_id, adapter=adapter)
    lost = has_lost_its_place(memory, weights, adapter=adapter)
    return lost or (up_to is not None and number <= up_to)


def highest_dropped(
    memory: DroppedPins | None, run_id: str | None, *, adapter: str = ""
) -> int | None:
    """The highest number of a run whose pin was dropped, as far as the fleet has a mark of it."""
    marks = memory.runs if memory is not None else ()
    found = (r.up_to for r in marks if (r.adapter, r.run_id) == (adapter, run_id))
    return max(found, default=None)


def has_lost_its_place(memory: DroppedPins | None, weights: Named, *, adapter: str = "") -> bool:
    """Whether the run of a version may have lost its mark, so that all its numbers need a digest."""
    if memory is None or number_of(weights.version) is None:
        return False
    return _has(_bits_in(memory.names), _bits_of(adapter, weights.run_id))


def _bits_of(*name: str | None) -> int:
    digest = sha256(json.dumps(name).encode()).digest()
    places = (int.from_bytes(digest[4 * n : 4 * n + 4]) for n in range(_PLACES))
    bits = 0
    for place in places:
        bits |= 1 << place % NAMES_BITS
    return bits


def _has(names: int, bits: int) -> bool:
    return names & bits == bits


def _bits_in(names: str) -> int:
    return int(names, 16) if names else 0
