"""Free ports of loopback, for servers that tests and tools start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on which nothing listens right now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
