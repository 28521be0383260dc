"""The elements in which a staged version differs from the one in the engine, found in the sealed bytes of both.

The comparison is of bits, so it needs to know nothing about numbers, and a NaN is a value like others. It takes
no word of a delta: what it finds is true of the bytes of which the worker has the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import torch

from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.mapping import mapped
from fleet_worker.engine.file_tensors import Reader
from fleet_worker.engine.held import Held, Key, key_of, opened
from rlfleet_resources.weight_files import DTYPES

MOST = 0.05
"""Largest share of changed elements. More save little."""
_BLOCK = 1 << 20
"""Elements to compare at a time."""
SAMPLE = 1 << 16
"""Elements of a model to compare around a load, of the changed ones and again of all in the changed tensors."""
LEAST_OF_A_PART = 64
"""Elements of each part of a tensor to compare at least."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NotInPlaceError(Exception):
    """A version must be loaded as a whole. The text is the reason."""


class PartlyWrittenError(Exception):
    """The model has a part of the changes, or other values than it should."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed elements of a tensor.

    Fields:
        positions: in the order of the file, ascending.
        values: their bits in the new version.
        sampled: indices of a few of them, ascending.
        before: the bits of these few in the version before. A load needs nothing else of it.
    """

    positions: np.ndarray
    values: np.ndarray
    sampled: np.ndarray
    before: np.ndarray

    @property
    def size_bytes(self) -> int:
        """Memory that they take, without the few."""
        return int(self.positions.nbytes + self.values.nbytes)


@dataclass(frozen=True, slots=True)
class Changes:
    """Where two versions differ.

    Fields:
        base: the files of the version before, in which the engine's weights must be.
        files: those of the version.
        tensors: name of each changed tensor → its changed elements.
        why_not: why the version must be loaded as a whole; empty if `tensors` are known.
    """

    base: frozenset[Key]
    files: frozenset[Key]
    tensors: Mapping[str, Changed]
    why_not: str = ""


class Finder:
    """Finds the changes to one staged version, in the thread of `Held`."""

    def __init__(self, held: Held, unfit: Callable[[], str | None]) -> None:
        """Find nothing yet.

        Args:
            held: Its thread finds them.
            unfit: Returns why no version can be loaded in place here, so that none is compared; or None.
        """
        self._held = held
        self._unfit = unfit
        self._asked: tuple[frozenset[Key], frozenset[Key]] | None = None
        self._found: Changes | None = None

    @property
    def size_bytes(self) -> int:
        """Memory of what it has found."""
        found = self._found
        return sum(each.size_bytes for each in found.tensors.values()) if found is not None else 0

    def want(self, base: Sequence[str], files: Sequence[str], room: int) -> None:
        """Find the changes from one version to another one, and forget all others. It does not wait.

        Args:
            base: Paths of the descriptors of the version before; none to find nothing.
            files: Those of the version.
            room: Bytes that the changes may take.

        Errors:
            OSError: A path leads nowhere.
        """
        with ExitStack() as unless_asked:
            before, now = (
                [opened(path, unless_asked) for path in paths] for paths in (base, files)
            )
            keys = frozenset(map(key_of, before)), frozenset(map(key_of, now))
            asked = keys if base and files else None
            if asked == self._asked:
                return
            self._asked, self._found = asked, None
            if asked is not None:
                find = partial(self._find, asked, before, now, room)
                self._held.do(partial(find, unless_asked.pop_all()))

    def found(self, base: frozenset[Key], files: frozenset[Key]) -> Changes:
        """Return the changes from one version to another one.

        Errors:
            NotInPlaceError: They are not known.
        """
        found = self._found
        if found is None or (found.base, found.files) != (base, files):
            raise NotInPlaceError("the two versions were not compared before the load")
        if found.why_not:
            raise NotInPlaceError(found.why_not)
        return found

    def _find(
        self,
        asked: tuple[frozenset[Key], frozenset[Key]],
        base: Sequence[int],
        files: Sequence[int],
        room: int,
        descriptors: ExitStack,
    ) -> None:
        """In the thread. Never fails."""
        with descriptors:
            try:
                self._check_fit()
                tensors = differing(base, files, room, lambda: self._asked == asked)
                found = Changes(*asked, tensors)
            except Exception as error:  # noqa: BLE001 - the version is loaded as a whole then
                known = isinstance(error, NotInPlaceError)
                why = str(error) if known else f"{type(error).__name__}: {error}"[:300]
                found = Changes(*asked, {}, why)
        if self._asked == asked:
            self._found = found

    def _check_fit(self) -> None:
        if why := self._unfit():
            raise NotInPlaceError(why)


def differing(
    base: Sequence[int], files: Sequence[int], room: int, is_wanted: Callable[[], bool]
) -> dict[str, Changed]:
    """Compare two versions in sealed memory. It takes about 1 s for 1 GB of weights. From any thread.

    Args:
        base: Descriptors of the version before.
        files: Those of the version.
        room: Bytes that the result may take.
        is_wanted: Asked between blocks.

    Returns: see `Changes.tensors`.

    Errors:
        NotInPlaceError: They have other tensors, or too much has changed for the room or for a gain.
        ValueError: The bytes are not sealed.
    """
    with ExitStack() as readers:
        pair = []
        for descriptors in (base, files):
            pair.append(list[Reader]())
            for descriptor in descriptors:
                reader = Reader(f"/proc/self/fd/{descriptor}", None, mapped)
                readers.callback(reader.close)
                pair[-1].append(reader)
        return _found(_by_name(pair[0]), _by_name(pair[1]), room, is_wanted)


Tensors = dict[str, tuple[TensorSpec, Reader]]


def _by_name(readers: Iterable[Reader]) -> Tensors:
    return {spec.name: (spec, reader) for reader in readers for spec in reader.specs}


def _found(
    base: Tensors, files: Tensors, room: int, is_wanted: Callable[[], bool]
) -> dict[str, Changed]:
    signatures = [{name: spec.signature for name, (spec, _) in t.items()} for t in (base, files)]
    if signatures[0] != signatures[1]:
        raise NotInPlaceError("the version before has other tensors, types or shapes")
    if odd := next((s for s, _ in files.values() if DTYPES[s.dtype].torch is None), None):
        raise NotInPlaceError(f"{odd.name} has the type {odd.dtype}")
    left, free = int(MOST * sum(prod(spec.shape) for spec, _ in files.values())), room
    found: dict[str, Changed] = {}

    def check(count: int, size: int) -> None:
        if count > left:
            raise NotInPlaceError(f"more than {MOST:.0%} of the elements have changed")
        if size > free:
            raise NotInPlaceError(
                f"the changed elements need more than {room} bytes, which stagingMemory has left for each process"
                " of the engine; raise spec.weights.stagingMemory"
            )
        if not is_wanted():
            raise NotInPlaceError("the comparison of the two versions was stopped")

    few = share_of_sample(len(files))
    for name in files:
        before, now = _bits(*base[name]), _bits(*files[name])
        positions = _differing(before, now, check)
        if len(positions):
            found[name] = changed = changed_at(positions, before, now, few)
            left, free = left - len(positions), free - changed.size_bytes
    return found


def share_of_sample(parts: int) -> int:
    """Return how many elements of each part to compare."""
    return max(LEAST_OF_A_PART, SAMPLE // max(1, parts))


def sample_of(size: int, few: int) -> np.ndarray:
    """Return indices that are spread evenly over this size: `few` of them, or all."""
    return np.unique(np.linspace(0, size - 1, few).astype(np.intp))


def changed_at(positions: np.ndarray, before: np.ndarray, now: np.ndarray, few: int) -> Changed:
    """Return the changed elements of a tensor, with the bits of all its elements in both versions."""
    sampled = sample_of(len(positions), few)
    return Changed(positions, now[positions], sampled, before[positions[sampled]])


def _bits(spec: TensorSpec, reader: Reader) -> np.ndarray:
    tensor = reader.tensor(spec, reader.content(spec)).view(-1)
    bits: np.ndarray = tensor.view(_BITS[tensor.element_size()]).numpy()
    return bits


def _differing(
    before: np.ndarray, now: np.ndarray, check: Callable[[int, int], None]
) -> np.ndarray:
    """Return the positions of the elements that differ. `check`: gets their number and bytes after each block."""
    kind = np.int32 if len(now) < 1 << 31 else np.int64
    found: list[np.ndarray] = []
    count = 0
    for begin in range(0, len(now), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        here = np.flatnonzero(before[block] != now[block])
        count += len(here)
        check(count, count * (kind().itemsize + now.itemsize))
        if len(here):
            found.append((here + begin).astype(kind))
    return np.concatenate(found) if found else np.empty(0, kind)
