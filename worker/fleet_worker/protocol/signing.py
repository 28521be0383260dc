"""Sign the operator's calls and a worker's answers with the fleet's admin token.

The token itself is never sent. A process that takes over a pod's address learns nothing about the
token from a call, and cannot sign an answer. Signatures do not encrypt. `docs/reference/worker.md`
has an example with numbers.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache

SIGNATURE_SCHEME = "RLFleet-HMAC-SHA256"
"""Scheme of the Authorization header of a signed call: `RLFleet-HMAC-SHA256 <64 hex digits>`."""
_CALL = "rlfleet-call-1"
_ANSWER = "rlfleet-answer-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCall:
    """The parts of a call that its signature covers.

    Fields:
        path: with `?` and the query, if there is one.
        pod_uid / instance: target pod and process. The instance is empty in a call that only reads:
            any process of the pod may answer it.
        nonce: `<session>-<number>`.
        body_digest: result of `body_digest`.
        driver: the trainer for which the RL API makes the call; empty in the operator's own.
    """

    method: str
    path: str
    pod_uid: str
    instance: str
    nonce: str
    body_digest: str
    driver: str = ""


def body_digest(body: bytes) -> str:
    """SHA-256 of a body, 64 hex digits."""
    return hashlib.sha256(body).hexdigest()


def call_signature(token: str, call: SignedCall) -> str:
    """HMAC-SHA256 of a call with the token as the key, 64 hex digits."""
    fields = (call.method, call.path, call.pod_uid, call.instance, call.nonce, call.body_digest)
    named = (call.driver,) if call.driver else ()
    return _signature(token, _CALL, *fields, *named)


def answer_signature(token: str, *, call: str, status: int, body: bytes) -> str:
    """HMAC-SHA256 of an answer, 64 hex digits.

    `call`: the signature of the call, which binds the answer to it.
    """
    return _signature(token, _ANSWER, call, str(status), body_digest(body))


def _signature(token: str, *fields: str) -> str:
    # Header values arrive as latin-1 and may hold anything: signing must not fail on them.
    text = "\n".join(fields).encode(errors="surrogatepass")
    signed = _keyed(token).copy()
    signed.update(text)
    return signed.hexdigest()


@lru_cache(maxsize=16)
def _keyed(token: str) -> hmac.HMAC:
    """Return the HMAC state after the key. Computing it costs more than hashing a call's text."""
    return hmac.new(token.encode(), digestmod="sha256")
