"""Free ports of this machine, for servers that tests and tools start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on which nothing listens at any address, kept for this process until it ends.

    Its server often starts seconds later, and may listen on all addresses. So the port stays bound at all of them,
    by a socket that never listens: the kernel gives it to no other process that asks for a free one. A port that
    is bound at loopback alone may be in use at another address, for a minute after a connection has ended there.

    A server can listen on it nevertheless. It needs SO_REUSEADDR, which servers of asyncio, uvicorn, Go and Rust set.
    """
    family, address = (
        (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "")
    )
    kept = socket.socket(family)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    kept.bind((address, 0))
    port = int(kept.getsockname()[1])
    kept.detach()  # it stays open
    return port
