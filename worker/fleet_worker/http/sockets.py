"""The addresses on which ports listen, in clusters of either family or of both."""

from __future__ import annotations

import socket

EVERY = "*"
"""Host of a port that listens on all addresses of both families."""
_BOTH_FAMILIES = "::"


def every_address() -> str:
    """Return the address that means all addresses of the families that this kernel has."""
    return _BOTH_FAMILIES if socket.has_dualstack_ipv6() else "0.0.0.0"


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet.

    It is bound before the engine starts, so that an address in use fails at once and not after minutes
    of loading. `*` means all addresses.
    """
    address = every_address() if host == EVERY else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Without the protocol, asyncio delays what it sends (Nagle) on the connections of this socket.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if address == _BOTH_FAMILIES:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound
