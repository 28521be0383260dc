"""How the operator's calls and a worker's answers are signed with the fleet's admin token.

The token itself does not travel: who takes over a pod's address learns nothing from a call, and
cannot make an answer that counts. What is signed is not hidden. `docs/reference/worker.md` has an
example with numbers.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

SIGNATURE_SCHEME = "RLFleet-HMAC-SHA256"
"""Scheme of the Authorization header of a signed call: `RLFleet-HMAC-SHA256 <64 hex digits>`."""
_CALL = "rlfleet-call-1"
_ANSWER = "rlfleet-answer-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCall:
    """What the signature of a call covers.

    Fields:
        path: with `?` and the query, if there is one.
        pod_uid / instance: the pod and the process that the call is for; a question is for any
            process of the pod, and its instance is empty.
        nonce: `<session>-<number>`.
        body_digest: of the body, by `body_digest`.
    """

    method: str
    path: str
    pod_uid: str
    instance: str
    nonce: str
    body_digest: str


def body_digest(body: bytes) -> str:
    """SHA-256 of a body, 64 hex digits."""
    return hashlib.sha256(body).hexdigest()


def call_signature(token: str, call: SignedCall) -> str:
    """HMAC-SHA256 of a call with the token as the key, 64 hex digits."""
    fields = (call.method, call.path, call.pod_uid, call.instance, call.nonce, call.body_digest)
    return _signature(token, _CALL, *fields)


def answer_signature(token: str, *, call: str, status: int, body: bytes) -> str:
    """HMAC-SHA256 of an answer, 64 hex digits.

    Args:
        token: The key.
        call: The signature of the call that is answered; it binds the answer to that one call.
        status: Of the answer.
        body: Of the answer.
    """
    return _signature(token, _ANSWER, call, str(status), body_digest(body))


def _signature(token: str, *fields: str) -> str:
    # Header values reach a worker as latin-1; whatever they hold, signing does not fail.
    text = "\n".join(fields).encode(errors="surrogatepass")
    return hmac.digest(token.encode(), text, "sha256").hex()
