"""The tokens of the admin port, from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

from fleet_worker.protocol import SignedCall, call_signature

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

        Args:
            call: The signed parts of the call.
            signature: In hex digits, as `call_signature` makes it.
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
