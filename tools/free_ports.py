"""Free ports of loopback, for servers that tests and tools start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on which nothing listens, kept for this process until it ends.

    Its server often starts seconds later. So the port stays bound, by a socket that never listens: the
    kernel gives it to no other process that asks for a free one. A server can listen on it nevertheless.
    It needs SO_REUSEADDR, which servers of asyncio, uvicorn, Go and Rust set.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    kept.detach()  # it stays open
    return port
