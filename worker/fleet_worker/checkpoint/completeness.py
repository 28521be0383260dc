"""Distinguish a bad source from one that a trainer is still writing.

A checkpoint that is cut off now may be complete in a second. There are two signs. Either other versions
in the same folder have the marker that the trainer writes last, and this one has not. Or its files
change while the worker reads them. Then the answer is `SourceNotReady` instead of a defect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fleet_worker.checkpoint.files import FileState, Roots, is_uri
from fleet_worker.checkpoint.nearby import with_what_is_there
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

T = TypeVar("T")

MARKER = "STABLE"
"""The file that some trainers write last: prime-rl's `broadcasts/step_N/STABLE`."""

_POLL_SECONDS = 0.5
_RETRY_AFTER_SECONDS = 2.0
_NEIGHBOURS = 256
# Refusals that an incomplete file can cause.
_UNFINISHED = frozenset(
    {
        Reason.SOURCE_NOT_FOUND,
        Reason.CHECKPOINT_TRUNCATED,
        Reason.CHECKPOINT_MALFORMED,
        Reason.CHECKPOINT_CHANGED,
        Reason.CHECKPOINT_AMBIGUOUS,
    }
)

FileTimes = dict[str, tuple[int, int]]
"""Name of a file → its size and modification time in ns."""


def open_settled(path: str, roots: Roots, opening: Callable[[], T]) -> T:
    """Open a source, or refuse it as not ready yet. Blocks, for half a second after a refusal.

    Args:
        path: Directory of the source.
        roots: The allowed roots.
        opening: Opens and checks the source.

    Errors:
        Refusal: `SourceNotReady`, or the refusal from `opening`. That of absent files tells what is there.
    """
    try:
        return _open_settled(path, roots, opening)
    except Refusal as refusal:
        raise with_what_is_there(refusal, path, roots) from refusal


def _open_settled(path: str, roots: Roots, opening: Callable[[], T]) -> T:
    before = _file_times(path, roots)
    if before is None:
        return opening()  # raises the reason
    _check_marked(path, roots, before)
    try:
        return opening()
    except Refusal as refusal:
        if refusal.reason in _UNFINISHED and _changes(path, roots, before):
            raise _not_ready(f"its files still change ({refusal.message})") from refusal
        raise


def states_of(path: str, roots: Roots) -> frozenset[tuple[str, FileState | None]]:
    """Return the state of all files of a directory; empty if it cannot be opened."""
    try:
        directory = open_directory(path, roots)
    except Refusal:
        return frozenset()
    try:
        return frozenset((name, directory.opened_state_of(name)) for name in directory.names)
    finally:
        directory.close()


def files_of(path: str, roots: Roots) -> FileTimes:
    """Return name → size and modification time in ns, of all files of a directory.

    Errors:
        Refusal: the directory cannot be opened.
    """
    open_directory(path, roots).close()
    return _file_times(path, roots) or {}


def _check_marked(path: str, roots: Roots, found: FileTimes) -> None:
    if is_uri(path):
        return  # one request for each neighbour
    directory = Path(os.path.realpath(path))
    if MARKER in found or not roots.contain(str(directory.parent)):
        return
    try:
        with os.scandir(directory.parent) as entries:
            names = [entry.name for _, entry in zip(range(_NEIGHBOURS), entries, strict=False)]
    except OSError:
        return
    for name in names:
        # Unlike `Path.exists`, this is False for a neighbour that the worker may not enter.
        if name != directory.name and os.path.exists(directory.parent / name / MARKER):  # noqa: PTH110 - see above
            raise _not_ready(f"it has no file {MARKER} yet, but {name} next to it has one")


def _changes(path: str, roots: Roots, before: FileTimes) -> bool:
    time.sleep(_POLL_SECONDS)
    after = _file_times(path, roots)
    return after is not None and after != before


def _file_times(path: str, roots: Roots) -> FileTimes | None:
    """Return name → size and modification time; None if the directory cannot be opened."""
    try:
        directory = open_directory(path, roots)
    except Refusal:
        return None
    try:
        return {name: directory.size_and_time(name) for name in directory.names}
    finally:
        directory.close()


def _not_ready(why: str) -> Refusal:
    return Refusal(
        Reason.SOURCE_NOT_READY,
        f"the source is not ready yet: {why}",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )
