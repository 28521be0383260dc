"""TLS between peers: with the certificate of the port for clients, if the fleet has one (vLLM's `--ssl-certfile`).

All workers of a fleet have the same flags and mounts, so they have the same certificate. A worker accepts no other
one from a peer, and asks for no name: certificates have the name of a Service, and none has the address of a pod.

The files are read again when they have changed. So a renewed certificate needs no restart.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate.

    Fields:
        path: of the certificate, which those of its issuers may follow.
        key: path of its key; empty if the first file has it.
    """

    path: str
    key: str = ""

    def own(self) -> str:
        """Return the certificate alone, as PEM. Errors: OSError; ValueError, if the file has none."""
        found = _CERTIFICATE.search(Path(self.path).read_text(errors="replace"))
        if found is None:
            raise ValueError(f"{self.path} has no certificate")
        return found[0]

    def serving(self) -> ssl.SSLContext:
        """Return the context of connections to serve. Errors: OSError."""
        found = [Path(path).stat() for path in (self.path, self.key) if path]
        return _serving(self, *((f.st_mtime_ns, f.st_size, f.st_ino) for f in found))


@lru_cache(maxsize=1)
def _serving(certificate: Certificate, *_: tuple[int, ...]) -> ssl.SSLContext:
    """The context, made again if the files have changed: any stranger that connects has one asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A key with a passphrase must not make the process ask for it.
    context.load_cert_chain(certificate.path, certificate.key or None, password="")
    return context


def reading(certificate: str) -> ssl.SSLContext:
    """Return the context of a connection to a peer, which must have this certificate. Errors: OSError, ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
