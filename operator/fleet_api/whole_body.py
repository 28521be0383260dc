"""The body of a request that the RL API answers itself: read before the request gets a place.

So a client that sends a body slowly holds some memory of its tenant, and no place of a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from fleet_api.bodies import CONTENT, content_of
from fleet_api.limits import Slots
from fleet_api.problems import too_large

READ_BYTES = 8 * 1024
"""Size from which a body is not read further until it is needed. Half a MiB of each body was in memory with the
defaults of aiohttp and Linux, also of strangers."""
LEAST_BYTES = 64 * 1024
"""The size of a body that has not come yet, at least: a connection and its buffers need about as much."""


@asynccontextmanager
async def whole_body(
    request: web.Request, max_bytes: int, memory: Slots, tenant: str
) -> AsyncIterator[None]:
    """Read the body into `CONTENT`. The block lasts as long as it is needed.

    Errors: Problem 408, 413; 503 if there is no memory for it.
    """
    if not request.body_exists:
        yield
        return
    length = request.content_length
    if length is None or "Content-Encoding" in request.headers:
        length = max_bytes
    if length > max_bytes:
        raise too_large(max_bytes)
    with memory.slot(tenant, max(LEAST_BYTES, length)) as slot:
        request[CONTENT] = content = await content_of(request, length)
        slot.keep(len(content))
        yield


@contextmanager
def held_back(request: web.Request, *, drops: bool = False) -> Iterator[None]:
    """Let the client keep the rest of its body while the block runs. `drops`: forget what has come of it."""
    content, transport = request.content, request.transport
    if content.is_eof() or content.exception() is not None or transport is None:
        yield
        return
    if drops:
        content.read_nowait()
    request.protocol.pause_reading()
    try:
        yield
    finally:
        if not transport.is_closing():
            request.protocol.resume_reading()
