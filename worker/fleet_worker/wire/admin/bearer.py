"""The bearer token of the admin port, from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

_LOG = logging.getLogger(__name__)


class BearerFile:
    """The tokens that a file holds, one a line, read again whenever the file changes.

    Several lines make a rotation without a gap: the operator and the workers see a changed Secret
    at different times, so the old and the new token are both valid for a while.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._digests: tuple[bytes, ...] = ()

    def accepts(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries one of the tokens.

        Without a readable token nothing is accepted.
        """
        self._refresh()
        scheme, _, token = (authorization or "").partition(" ")
        offered = _digest(token.strip())
        # Every line is compared, always: how long it takes says nothing.
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, offered)
        return found and scheme.lower() == "bearer"

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            _LOG.error("the admin token file cannot be read: %s", type(error).__name__)
            self._seen, self._digests = None, ()
            return
        self._seen = seen
        self._digests = tuple(_digest(line.strip()) for line in lines if line.strip())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
