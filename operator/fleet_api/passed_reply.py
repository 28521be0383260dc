"""The reply to a request that is passed on, part by part, to a client that may not read it."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from fleet_api.calls import Call
from fleet_api.connections import RECEIVED_BYTES, WRITTEN_BYTES
from fleet_api.limits import Slots

UNREAD_BYTES = 48 * 1024 * 1024
"""Heads of all replies, and parts that wait for their clients. Of the 256 MiB of the chart the process needs 80, and each
reply that waits about 100 KiB."""


class PassedReplies:
    """Passes replies on. Namespaces share the memory for heads, and for the parts that clients do not read."""

    def __init__(self) -> None:
        self._unread = Slots(UNREAD_BYTES)

    async def pass_on(
        self, call: Call, reply: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        """Send each part of a reply as it comes.

        Errors: ClientPayloadError if the reply breaks, or if its client does not read it and its namespace has
        no memory left. Then the connection to the client has ended, too.
        """
        transport = call.request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=WRITTEN_BYTES)
        unread = self._unread.open(call.fleet.namespace)
        # As it came, and as it is sent.
        head_bytes = 2 * sum(len(name) + len(value) for name, value in reply.raw_headers)

        def hold(size_bytes: int) -> None:
            if not unread.add(size_bytes):
                if transport is not None:
                    transport.abort()
                raise aiohttp.ClientPayloadError("the client does not read its reply")

        try:
            hold(head_bytes)
            async for part in reply.content.iter_any():
                # While it is written, as much may come from the worker.
                hold(len(part) + RECEIVED_BYTES)
                await response.write(part)
                unread.keep(head_bytes)
        finally:
            unread.release()
