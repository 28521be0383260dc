"""Writes the versions of one process, and decides which ones are deltas.

It keeps a copy of the weights that it wrote last in the memory of the host, as many bytes as the checkpoint has.
So a delta needs no file of its base. After a restart there is no copy, and the first version is full.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rlfleet.deltas.directories import new_directory, size_of
from rlfleet.deltas.options import Deltas, Given
from rlfleet.deltas.sources import FromDirectory, FromStateDict, InMemory, Source
from rlfleet.deltas.writing import TooMuchChanged, write_delta, write_full
from rlfleet.deltas.written import Written, in_words

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A version to write.

    Fields:
        version, run_id: its label.
        path: its directory, as workers see it.
        target: its directory here.
        deltas: when it is a delta; None for never.
        left_base: takes the version and run that were written last. Why the fleet does not go on from it;
            empty if it does.
    """

    version: str
    run_id: str | None
    path: str
    target: Path
    deltas: Deltas | None
    left_base: Callable[[tuple[str, str | None]], str]


@dataclass(frozen=True, slots=True)
class _Last:
    """The version that was written last. `since_anchor`: deltas since the last full version."""

    order: Order
    held: InMemory
    since_anchor: int


class Publisher:
    """Writes one version after the other. Several threads may use it."""

    def __init__(self) -> None:
        self._last: _Last | None = None
        self._lock = threading.Lock()

    def write(self, order: Order, given: Given) -> Written:
        """Write a version. After an error the next one is full.

        Errors: FileExistsError, UnusableWeights, NotWritten.
        """
        started = time.monotonic()
        with self._lock, _opened(given) as source:
            last, self._last = self._last, None
            if order.deltas is None:
                written, held = _full(order, source, None), None
            else:
                written, held = _as_it_fits(order, source, last, order.deltas)
            if held is not None:
                since = last.since_anchor + 1 if last and written.base_version is not None else 0
                self._last = _Last(order, held, since)
        written = replace(written, seconds=time.monotonic() - started)
        _LOG.info("%s", in_words(written))
        return written


def why_full(order: Order, source: Source, last: _Last | None, deltas: Deltas) -> str:
    """Why a version cannot or should not be a delta of the last one; empty if it can."""
    if last is None:
        return "this process has written no version before it, or failed to"
    before = last.order
    if before.run_id != order.run_id:
        return f"version {before.version} is of another run"
    if before.version == order.version:
        return f"this process writes version {order.version} again, which cannot be its own base"
    if last.since_anchor + 1 >= deltas.anchor_every:
        return f"one of {deltas.anchor_every} versions is full"
    if Path(order.path) != _neighbour(before, order.version):
        return f"workers look for version {before.version} next to it, not in {before.path}"
    left = order.left_base((before.version, before.run_id))
    return left or last.held.layout.difference(source.layout)


def _neighbour(before: Order, version: str) -> Path | None:
    """The directory of a version next to that of another one: its name, with the version in it replaced."""
    path = Path(before.path)
    if before.version not in path.name:
        return None
    head, _, tail = path.name.rpartition(before.version)
    return path.with_name(f"{head}{version}{tail}")


def _as_it_fits(
    order: Order, source: Source, last: _Last | None, deltas: Deltas
) -> tuple[Written, InMemory]:
    """Write a delta, or the full weights. Returns: what was written, and the copy of the weights."""
    why = why_full(order, source, last, deltas)
    if not why and last is not None:
        try:
            return _delta(order, source, last, deltas), last.held
        except TooMuchChanged:
            why = f"more than {deltas.max_changed_share:.0%} of its elements differ"
    # The former copy is of no use, and its memory is that of the new one where the layout is the same.
    is_same = last is not None and not last.held.layout.difference(source.layout)
    held = last.held if is_same and last is not None else InMemory(source.layout)
    held.digest = None
    return replace(_full(order, source, held), why_full=why), held


def _delta(order: Order, source: Source, last: _Last, deltas: Deltas) -> Written:
    base = last.order.version
    with new_directory(order.target, deltas.mode) as folder:
        done = write_delta(
            last.held,
            source,
            folder,
            version=order.version,
            base_version=base,
            progress=_quietly,
            most_changed=deltas.max_changed_share,
        )
    last.held.digest = done.result_digest
    return Written(
        version=order.version,
        directory=str(order.target),
        digest=done.result_digest,
        base_version=base,
        changed_share=done.changed_share,
        written_bytes=done.written_bytes,
        full_bytes=done.full_bytes,
    )


def _full(order: Order, source: Source, held: InMemory | None) -> Written:
    mode = (order.deltas or Deltas()).mode
    with new_directory(order.target, mode) as folder:
        digest = write_full(source, folder, held, _quietly)
        size = size_of(folder)
    if held is not None:
        held.digest = digest
    return Written(
        version=order.version,
        directory=str(order.target),
        digest=digest,
        written_bytes=size,
        full_bytes=source.layout.size,
    )


@contextmanager
def _opened(given: Given) -> Iterator[Source]:
    """The weights that are given. Errors: UnusableWeights."""
    with tempfile.TemporaryDirectory(prefix="rlfleet-") as scratch:
        directory = given.directory
        if given.model is not None:
            given.model.save_pretrained(scratch)
            directory = Path(scratch)
        source: FromDirectory | FromStateDict
        if directory is not None:
            source = FromDirectory(directory)
        else:
            source = FromStateDict(given.state_dict or {}, given.config_from or Path())
        try:
            yield source
        finally:
            source.close()


def _quietly(_: int) -> None:
    """Progress that is not shown."""
