"""Open descriptors: what is opened must be closed."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def open_descriptors() -> frozenset[tuple[int, int, int]]:
    """The descriptors that this process has open: number, device and inode of each.

    Compare with `<=`: what an earlier test's thread closes in the meantime does not count. Descriptors of unused objects,
    also of earlier tests, are closed first.
    """
    gc.collect()
    found = []
    for each in Path("/proc/self/fd").iterdir():
        number = int(each.name)
        try:
            is_open = os.fstat(number)
        except OSError:
            continue  # the listing's own, or one that a thread closed
        found.append((number, is_open.st_dev, is_open.st_ino))
    return frozenset(found)
