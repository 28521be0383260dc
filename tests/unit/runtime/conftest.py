"""Tests with the marker `virtual_time` wait on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support.virtual_time import VirtualTimeLoop

Loops = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    """The loop of a test."""
    jumps = item.get_closest_marker("virtual_time") is not None
    return {"loop": VirtualTimeLoop if jumps else asyncio.new_event_loop}
