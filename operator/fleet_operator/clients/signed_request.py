"""A signed request to the admin port of a worker, as bytes, and the check of its answer.

The same request may go to thousands of workers. Their common part is built once. Only the head differs,
by address, pod, nonce and signature.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from fleet_operator.clients.http_connections import Address
from fleet_operator.clients.http_response import HttpResponse
from fleet_operator.ports import Addressee
from fleet_worker import protocol

_HEAD_LINES = 11
"""Without the driver's."""
_SIGNATURE_HEADER = protocol.HEADER_SIGNATURE.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """The part of a request that is the same for all workers.

    Fields:
        path: with `?` and the query, if there is one.
        body_digest: SHA-256 of the body in hex digits.
        seconds: timeout of the answer.
        driver: the trainer that holds the worker's lease from now on; empty for the operator.
    """

    method: str
    path: str
    body: bytes
    body_digest: str
    seconds: float
    driver: str = ""

    @classmethod
    def of(
        cls, method: str, path: str, body: bytes = b"", *, seconds: float, driver: str = ""
    ) -> SignedRequest:
        """A request with the digest of its body."""
        digest = protocol.body_digest(body)
        return cls(
            method=method,
            path=path,
            body=body,
            body_digest=digest,
            seconds=seconds,
            driver=driver,
        )

    def to(self, worker: Addressee, nonce: str) -> tuple[Address, str, bytes]:
        """The request for one worker. Returns: its address, the signature and the bytes.

        Args:
            worker: The worker.
            nonce: A value that was never used before.

        Errors: ValueError for an address that is not one of a worker, and if a header would contain
            a line break.
        """
        address, host = _place_of(worker.base_url)
        call = protocol.SignedCall(
            method=self.method,
            path=self.path,
            pod_uid=worker.pod_uid,
            instance=worker.instance,
            nonce=nonce,
            body_digest=self.body_digest,
            driver=self.driver,
        )
        signature = protocol.call_signature(worker.token, call)
        driver = f"{protocol.HEADER_DRIVER}: {self.driver}\r\n" if self.driver else ""
        head = (
            f"{self.method} {self.path} HTTP/1.1\r\n"
            f"Host: {host}\r\n"
            f"Authorization: {protocol.SIGNATURE_SCHEME} {signature}\r\n"
            "Accept-Encoding: identity\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            f"{protocol.HEADER_POD_UID}: {worker.pod_uid}\r\n"
            f"{protocol.HEADER_INSTANCE}: {worker.instance}\r\n"
            f"{protocol.HEADER_NONCE}: {nonce}\r\n"
            f"{protocol.HEADER_BODY_DIGEST}: {self.body_digest}\r\n"
            f"{driver}\r\n"
        )
        breaks = _HEAD_LINES + bool(driver)
        if head.count("\n") != breaks or head.count("\r") != breaks:
            raise ValueError("a line break in a header of a call")
        return address, signature, head.encode("latin-1") + self.body


class Nonces:
    """Nonces of one process. They grow, so that a worker accepts a call only once, and no late one."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(16)
        self._numbers = itertools.count(1)

    def next(self) -> str:
        """A nonce that was never used before."""
        return f"{self._session}-{next(self._numbers)}"


def is_signed(answer: HttpResponse, token: str, call: str) -> bool:
    """Whether an answer is signed for the call with this signature."""
    expected = protocol.answer_signature(token, call=call, status=answer.status, body=answer.body)
    claimed = answer.headers.get(_SIGNATURE_HEADER, "")
    return hmac.compare_digest(expected.encode(), claimed.encode(errors="replace"))


@lru_cache(maxsize=20_000)
def _place_of(base_url: str) -> tuple[Address, str]:
    """The address of `http://host:port`, and its form in a header.

    Errors: ValueError for another URL.
    """
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"{base_url} is not the URL of a worker")
    named = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return (parts.hostname, parts.port), f"{named}:{parts.port}"
