"""Common to all requests: how long they take at most, and what a failure to send means."""

from __future__ import annotations

import ssl

import httpx

from rlfleet.errors import NotConfigured, RlfleetError, Unavailable

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0


def broken(error: httpx.TransportError, server: str, remedy: str) -> RlfleetError:
    """The error for a failure to send or to receive. `remedy`: where another attempt is of no use."""
    message = f"{server} does not answer: {type(error).__name__} {error}".rstrip()
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ssl.SSLCertVerificationError, httpx.UnsupportedProtocol)):
            return NotConfigured(f"{message}; {remedy}")
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"{message}; see if it runs, and if this machine reaches it")
