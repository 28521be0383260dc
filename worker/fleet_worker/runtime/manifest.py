"""`python -m fleet_worker manifest DIR`: what a checkpoint's digest is made of, and the digest."""

from __future__ import annotations

import os
import sys

from fleet_worker.adapters.files import OpenDirectory
from fleet_worker.adapters.opening import open_adapter, open_checkpoint
from fleet_worker.core.adapter_layout import ADAPTER_CONFIG_FILE
from fleet_worker.core.digests import digest_of, manifest_of
from fleet_worker.core.refusals import Refusal

_REFUSED = 1


def manifest(path: str, *, only_digest: bool) -> int:
    """Print the manifest of a checkpoint or an adapter; returns the exit code.

    Args:
        path: Its directory.
        only_digest: Print the digest instead, as `spec.digest` wants it.
    """
    try:
        hashes = _hashes(path)
    except Refusal as refusal:
        print(f"{path}: {refusal.message}", file=sys.stderr)  # noqa: T201 - for people
        return _REFUSED
    text = digest_of(hashes) + "\n" if only_digest else manifest_of(hashes)
    # The bytes of names as they are: some are no UTF-8.
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    return 0


def digest_in(path: str) -> str:
    """The digest of the checkpoint or the adapter in a directory.

    Errors:
        OSError: it holds none.
    """
    try:
        return digest_of(_hashes(path))
    except Refusal as refusal:
        raise OSError(f"{path}: {refusal.message}") from refusal


def _hashes(path: str) -> dict[str, str]:
    path = os.path.realpath(path)
    directory = OpenDirectory(path, None)
    directory.close()
    is_adapter = ADAPTER_CONFIG_FILE in directory.names
    opened = open_adapter(path, None) if is_adapter else open_checkpoint(path, None)
    try:
        return opened.hashes(lambda: None)
    finally:
        opened.close()
