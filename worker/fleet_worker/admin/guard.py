"""Check callers of the admin port: by a bearer token of a file, or by a call that is signed with one.

A signature covers the pod and the body. The worker accepts each signed call once: its nonce is
`<session>-<number>`, and the numbers of a session must grow. A call that was recorded in an earlier
process of the pod names another instance.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.admin.addressing import Taken, check_pod
from fleet_worker.errors import Refusal
from fleet_worker.http.asgi import Message, Scope, Send, header_of
from fleet_worker.protocol import (
    HEADER_BODY_DIGEST,
    HEADER_DRIVER,
    HEADER_INSTANCE,
    HEADER_NONCE,
    HEADER_POD_UID,
    HEADER_SIGNATURE,
    MAX_DRIVER_CHARACTERS,
    SIGNATURE_SCHEME,
    Reason,
    SignedCall,
    answer_signature,
    body_digest,
    call_signature,
)

_LOG = logging.getLogger(__name__)


class BearerFile:
    """The tokens in a file, one per line. The worker reads the file again when it changes.

    Several lines allow a rotation without a gap. The operator and the workers see a changed Secret
    at different times, so the old and the new token are both valid for a while.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens."""
        self._refresh()
        return self._tokens

    def accepts(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries one of the tokens.

        Without a readable token the worker accepts no call.
        """
        self._refresh()
        scheme, _, token = (authorization or "").partition(" ")
        offered = _digest(token.strip())
        # Always compares every line, so that the time reveals nothing.
        found = False
        for known in self._tokens:
            found |= hmac.compare_digest(_digest(known), offered)
        return found and scheme.lower() == "bearer"

    def signer_of(self, call: SignedCall, signature: str) -> str | None:
        """Return the token that a call was signed with; None if no token fits.

        `signature`: in hex digits, as `call_signature` makes it.
        """
        self._refresh()
        offered, found = _digest(signature), None
        for known in self._tokens:
            if hmac.compare_digest(_digest(call_signature(known, call)), offered):
                found = known
        return found

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            _LOG.error("the admin token file cannot be read: %s", type(error).__name__)
            self._seen, self._tokens = None, ()
            return
        self._seen = seen
        self._tokens = tuple(line.strip() for line in lines if line.strip())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


_NONCE = re.compile(r"([0-9a-f]{16,64})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with a valid token or signature.

    Fields:
        token / signature / call: of a signed call; empty and None for a bearer token.
    """

    token: str = ""
    signature: str = ""
    call: SignedCall | None = None

    @property
    def driver(self) -> str:
        """The trainer that a signed call names; empty without one.

        Errors:
            Refusal: `BadRequest` for a name that cannot hold a lease.
        """
        name = self.call.driver if self.call is not None else ""
        if len(name) > MAX_DRIVER_CHARACTERS or not name.isprintable():
            raise Refusal(
                Reason.BAD_REQUEST,
                f"{HEADER_DRIVER} must have at most {MAX_DRIVER_CHARACTERS} printable characters",
            )
        return name

    def sealed(self, send: Send) -> Send:
        """Return a `send` that signs the answer, if the call was signed. An answer has one body message."""
        if self.call is None:
            return send
        begun: list[Message] = []

        async def sign(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
                return
            start = begun.pop()
            signature = answer_signature(
                self.token, call=self.signature, status=start["status"], body=message["body"]
            )
            header = (HEADER_SIGNATURE.encode(), signature.encode())
            await send({**start, "headers": [*start["headers"], header]})
            await send(message)

        return sign


class Guard:
    """Accepts each valid call once."""

    def __init__(self, tokens: BearerFile, *, pod_uid: str | None, instance: str) -> None:
        """`pod_uid`: None if the worker does not know it. `instance`: as in the state."""
        self._tokens = tokens
        self._pod_uid = pod_uid
        self._taken = Taken(instance)

    def authenticate(self, scope: Scope, token: str | None) -> Caller:
        """Check a token or a signature, before the body is read.

        Errors:
            Refusal: `Unauthorized`.
        """
        header = header_of(scope["headers"], b"authorization")
        if token is not None:
            header = f"Bearer {token}"
        scheme, _, signature = (header or "").partition(" ")
        if scheme.lower() != SIGNATURE_SCHEME.lower():
            if self._tokens.accepts(header):
                return Caller()
            raise Refusal(Reason.UNAUTHORIZED, "the call needs a valid bearer token")
        call, signature = _signed_call(scope), signature.strip().lower()
        key = self._tokens.signer_of(call, signature)
        if key is None:
            message = "no token of this worker makes this signature"
            raise Refusal(Reason.UNAUTHORIZED, message)
        return Caller(key, signature, call)

    def check_pod(self, scope: Scope, caller: Caller) -> None:
        """Refuse a call that is for another pod. A call with a bearer token need not name a pod.

        Errors:
            Refusal: `WrongPod`.
        """
        wanted = header_of(scope["headers"], HEADER_POD_UID.encode())
        if wanted is not None or caller.call is not None:
            check_pod(wanted or "", self._pod_uid)

    def take(self, caller: Caller, body: bytes) -> None:
        """Check the body of a signed call, and that it is neither late nor a repetition.

        GET changes nothing, so it may be repeated.

        Errors:
            Refusal: `Unauthorized` or `StaleCall`.
        """
        call = caller.call
        if call is None:
            return
        if body_digest(body) != call.body_digest:
            raise Refusal(Reason.UNAUTHORIZED, "the body is not the one that was signed")
        if call.method == "GET":
            return
        nonce = _NONCE.fullmatch(call.nonce)
        if nonce is None:
            raise Refusal(Reason.BAD_REQUEST, f"{HEADER_NONCE} is not <session>-<number>")
        self._taken.take(call.instance, nonce[1], int(nonce[2]))


def _signed_call(scope: Scope) -> SignedCall:
    def of(name: str) -> str:
        return header_of(scope["headers"], name.encode()) or ""

    query = scope.get("query_string", b"").decode("latin-1")
    return SignedCall(
        method=scope["method"],
        path=scope["path"] + (f"?{query}" if query else ""),
        pod_uid=of(HEADER_POD_UID),
        instance=of(HEADER_INSTANCE),
        nonce=of(HEADER_NONCE),
        body_digest=of(HEADER_BODY_DIGEST),
        driver=of(HEADER_DRIVER),
    )
