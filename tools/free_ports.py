"""Free ports of loopback, for servers that tests and tools start."""

from __future__ import annotations

import socket

_given: set[int] = set()


def free_port() -> int:
    """A port on which nothing listens right now, and which this process has not got before."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
