"""Signals that end the process in order."""

from __future__ import annotations

import asyncio
import signal


def take_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT stop the operator."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
