"""Open descriptors: what is opened must be closed."""

from __future__ import annotations

import gc
import os
from pathlib import Path

Descriptors = frozenset[tuple[int, int, int]]
"""Number, device and inode of each."""


def open_descriptors() -> Descriptors:
    """The descriptors that this process has open, also those of unused objects."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        number = int(each.name)
        try:
            is_open = os.fstat(number)
        except OSError:
            continue  # the listing's own, or one that a thread closed
        found.append((number, is_open.st_dev, is_open.st_ino))
    return frozenset(found)


def left_open(before: Descriptors) -> Descriptors:
    """Descriptors that were opened since and are open now. Those of unused objects are closed first."""
    left = open_descriptors() - before
    if left:
        gc.collect()  # a third of a second in a process that has run thousands of tests
        left &= open_descriptors()
    return left
