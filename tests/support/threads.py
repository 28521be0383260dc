"""Threads of this process: a test counts those that it has started itself."""

from __future__ import annotations

import threading


def threads_named(name: str) -> frozenset[threading.Thread]:
    """The running threads whose names begin so. Those from before the test are there, too: compare with `<=`."""
    return frozenset(each for each in threading.enumerate() if each.name.startswith(name))
