"""Chooses the operator's event loop: uvloop where it is installed, else that of the standard library.

The operator's image has uvloop: a call to a worker takes less processor time with it
(docs/decisions/0028-uvloop-where-it-is-installed.md). Nothing here depends on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of the process's event loop. The Lease's thread uses the standard library's: it sends
    one request every few seconds.
    """
    try:
        import uvloop  # noqa: PLC0415 - not needed to run
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
