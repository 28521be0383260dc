"""Telling a source that is bad from one that is still being written.

Trainers write while workers look: a checkpoint that is cut off now may be whole in a second. Two
signs tell: other versions beside it carry the marker that their writer sets last and it does not;
or its files change while one looks. Then the answer is `SourceNotReady`, and not that it is bad.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fleet_worker.adapters.files import FileState, OpenDirectory, Roots
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

T = TypeVar("T")

MARKER = "STABLE"
"""Written last, where a layout has it: prime-rl's `broadcasts/step_N/STABLE`."""

_LOOK_AGAIN_SECONDS = 0.5
_RETRY_AFTER_SECONDS = 2.0
_NEIGHBOURS = 256
# What half-written files look like.
_UNFINISHED = frozenset(
    {
        Reason.SOURCE_NOT_FOUND,
        Reason.CHECKPOINT_TRUNCATED,
        Reason.CHECKPOINT_MALFORMED,
        Reason.CHECKPOINT_CHANGED,
    }
)

Look = dict[str, tuple[int, int]]


def open_settled(path: str, roots: Roots, opening: Callable[[], T]) -> T:
    """Open a source, or say that it is not ready yet. Blocks, after a refusal for half a second.

    Args:
        path: Its directory.
        roots: Where it must be.
        opening: Opens and checks it.

    Errors:
        Refusal: `SourceNotReady`, or what `opening` raises.
    """
    before = _look(path, roots)
    if before is None:
        return opening()  # it says why
    _check_marked(path, roots, before)
    try:
        return opening()
    except Refusal as refusal:
        if refusal.reason in _UNFINISHED and _changes(path, roots, before):
            raise _not_ready(f"its files are being written ({refusal.message})") from refusal
        raise


def states_of(path: str, roots: Roots) -> frozenset[tuple[str, FileState | None]]:
    """What tells whether any file of a directory has changed; empty if it cannot be opened."""
    try:
        directory = OpenDirectory(path, roots)
    except Refusal:
        return frozenset()
    try:
        return frozenset((name, directory.opened_state_of(name)) for name in directory.names)
    finally:
        directory.close()


def files_of(path: str, roots: Roots) -> Look:
    """Name → size and modification time in ns of all that a directory holds.

    Errors:
        Refusal: `SourceNotFound` and its like.
    """
    OpenDirectory(path, roots).close()
    return _look(path, roots) or {}


def _check_marked(path: str, roots: Roots, found: Look) -> None:
    directory = Path(os.path.realpath(path))
    if MARKER in found or not roots.hold(str(directory.parent)):
        return
    try:
        with os.scandir(directory.parent) as entries:
            names = [entry.name for _, entry in zip(range(_NEIGHBOURS), entries, strict=False)]
    except OSError:
        return
    for name in names:
        if name != directory.name and (directory.parent / name / MARKER).exists():
            raise _not_ready(f"it has no marker {MARKER}, as {name} beside it has")


def _changes(path: str, roots: Roots, before: Look) -> bool:
    time.sleep(_LOOK_AGAIN_SECONDS)
    after = _look(path, roots)
    return after is not None and after != before


def _look(path: str, roots: Roots) -> Look | None:
    """Name → size and modification time of all files; None if the directory cannot be opened."""
    try:
        directory = OpenDirectory(path, roots)
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
