"""Common parts of all requests: timeouts, errors of the transport, and acknowledgements of answers."""

from __future__ import annotations

import socket
import ssl

import httpx

from rlfleet.errors import NotConfigured, RlfleetError, Unavailable

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0


def broken(error: httpx.TransportError, server: str, remedy: str) -> RlfleetError:
    """The error for a failure to send or to receive. `remedy`: for failures that no retry can repair."""
    message = f"{server} does not answer: {type(error).__name__} {error}".rstrip()
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ssl.SSLCertVerificationError, httpx.UnsupportedProtocol)):
            return NotConfigured(f"{message}; {remedy}")
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"{message}; check that it runs, and that this machine can reach it")


def acknowledge(answer: httpx.Response) -> None:
    """Acknowledge the first part of an answer at once, where the system can.

    An API server sends an answer of some kilobytes in several parts. Linux delays acknowledgements by
    40 ms, and the next part often waits for one, although the server sets TCP_NODELAY (measured on
    Linux 6.18). Source: tcp(7), TCP_QUICKACK.
    """
    stream = answer.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None or not hasattr(socket, "TCP_QUICKACK"):
        return
    # uvloop's sockets have no setsockopt.
    borrowed = socket.socket(fileno=connection.fileno())
    try:
        borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        borrowed.detach()


async def acknowledge_async(answer: httpx.Response) -> None:
    """`acknowledge` as a hook of an asynchronous client."""
    acknowledge(answer)
