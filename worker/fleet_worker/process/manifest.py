"""`python -m fleet_worker manifest DIR`: print a checkpoint's manifest or its digest."""

from __future__ import annotations

import os
import sys

from fleet_worker.checkpoint.identity import digest_of, manifest_of
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import is_adapter, open_adapter

_REFUSED = 1


def manifest(path: str, *, only_digest: bool) -> int:
    """Print the manifest of a checkpoint or a LoRA adapter; returns the exit code.

    Args:
        path: Its directory.
        only_digest: Print the digest instead, in the form of `spec.digest`.
    """
    try:
        hashes = _hashes(path)
    except Refusal as refusal:
        print(f"{path}: {refusal.message}", file=sys.stderr)  # noqa: T201 - output of a command
        return _REFUSED
    text = digest_of(hashes) + "\n" if only_digest else manifest_of(hashes)
    # File names are bytes, and may be invalid UTF-8.
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    return 0


def digest_in(path: str) -> str:
    """The digest of the checkpoint or LoRA adapter in a directory.

    Errors:
        OSError: The directory has neither.
    """
    try:
        return digest_of(_hashes(path))
    except Refusal as refusal:
        raise OSError(f"{path}: {refusal.message}") from refusal


def _hashes(path: str) -> dict[str, str]:
    path = os.path.realpath(path)
    opened = open_adapter(path, None) if is_adapter(path) else open_checkpoint(path, None)
    try:
        return opened.hashes(lambda: None)
    finally:
        opened.close()
