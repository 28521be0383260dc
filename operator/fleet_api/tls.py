"""The certificate of the RL API, renewed without a restart.

Each handshake checks whether the files have changed. A Secret's files change together, by a link that
the kubelet replaces. If both reads meet different files, the next handshake reads them again.

Source: Python's `ssl`, `SSLContext.sni_callback`.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate and its key, in files. Errors of the constructor: OSError, also of `ssl`."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._stamp = self._stamp_now()
        self._newest = self._load()
        self._serving = self._load()
        self._serving.sni_callback = self._choose

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a server. Each of its connections gets the newest certificate."""
        return self._serving

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called at each handshake, also of a client that sends no name."""
        self._renew()
        connection.context = self._newest

    def _renew(self) -> None:
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            self._newest, self._stamp = self._load(), stamp
        except OSError as error:
            logger.warning(
                "the certificate has changed and cannot be loaded (%s); the previous one stays in use",
                error,
            )
        else:
            logger.info("the certificate has changed; new connections get it")

    def _stamp_now(self) -> _Stamp:
        found = [file.stat() for file in self._files]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificate, key = self._files
        # A key with a passphrase must not make the process ask for it.
        context.load_cert_chain(certificate, key, password="")
        return context
