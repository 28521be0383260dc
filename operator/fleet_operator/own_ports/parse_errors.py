"""Lets go of what is kept by the error of a request that is not HTTP.

aiohttp keeps the error for its reply. The traceback of the error has the frames that read the bytes, and these have
the error: a circle that only Python's collector ends, which comes late. So each such connection of a stranger left
up to a megabyte, and some seconds of them ended the process.
"""

from __future__ import annotations

import asyncio
from typing import Any


def waiting_messages(protocol: asyncio.Protocol) -> list[Any]:
    """The messages, requests or errors, that a protocol of aiohttp has read whole, and has not begun to serve.

    Source: aiohttp 3.14, `web_protocol.RequestHandler.data_received`.
    """
    return [message for message, _ in getattr(protocol, "_messages", ())]


def forget_frames(protocol: asyncio.Protocol) -> None:
    """Call it whenever a protocol of aiohttp has received bytes."""
    for message in waiting_messages(protocol):
        if (error := getattr(message, "exc", None)) is not None:
            error.__traceback__ = None
