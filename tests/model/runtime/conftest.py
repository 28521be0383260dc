"""The tests of the whole runtime wait on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of each test."""
    return {"virtual": VirtualTimeLoop}
