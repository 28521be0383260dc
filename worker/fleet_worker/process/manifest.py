"""`python -m fleet_worker manifest DIR`: print a checkpoint's manifest or its digest."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, open_weights
from fleet_worker.checkpoint.links import link_weights
from fleet_worker.checkpoint.weight_sets import NAMING_KEY
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import Kind, kind_of, open_adapter
from rlfleet_resources.weight_files import CONFIG_FILE, digest_of, manifest_of

_REFUSED = 1


def manifest(path: str, *, kind: str | None = None, only_digest: bool) -> int:
    """Print the manifest of a checkpoint or a LoRA adapter; returns the exit code.

    Args:
        path: Its directory.
        kind: What the directory is read as; None for what it holds.
        only_digest: Print the digest instead, in the form of `spec.digest`.
    """
    try:
        hashes = _hashes(path, kind)
    except Refusal as refusal:
        print(f"{path}: {refusal.message}", file=sys.stderr)  # noqa: T201 - output of a command
        return _REFUSED
    text = digest_of(hashes) + "\n" if only_digest else manifest_of(hashes)
    # File names are bytes, and may be invalid UTF-8.
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    return 0


def digest_in(path: str, *, is_adapter: bool = False) -> str:
    """The digest of the checkpoint or LoRA adapter in a directory.

    Errors:
        OSError: The directory has none.
    """
    with _as_os_error(path):
        return digest_of(_hashes(path, Kind.ADAPTER if is_adapter else Kind.CHECKPOINT))


@contextmanager
def only_weights(path: str) -> Iterator[str]:
    """Give a directory that has a checkpoint's configuration and weights, or those of a delta, and nothing else.

    Libraries choose files by rules of their own. There they find only those of the digest.

    Errors:
        OSError: The directory has no checkpoint.
    """
    with _as_os_error(path):
        checkpoint = open_weights(os.path.realpath(path), None, Bases())
    try:
        if checkpoint.changed is not None:  # no file has its bytes
            with _as_os_error(path):
                checkpoint.read_all(budget=checkpoint.size_bytes, check_cancelled=lambda: None)
        with tempfile.TemporaryDirectory(prefix="rlfleet-weights-") as made:
            link_weights(checkpoint, Path(made))
            config = {k: v for k, v in checkpoint.config.items() if k != NAMING_KEY}
            Path(made, CONFIG_FILE).write_text(json.dumps(config))
            yield made
    finally:
        checkpoint.close()


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        raise OSError(f"{path}: {refusal.message}") from refusal


def _hashes(path: str, kind: str | None) -> dict[str, str]:
    opened = _open(os.path.realpath(path), kind)
    try:
        return opened.hashes(lambda: None)
    finally:
        opened.close()


def _open(path: str, kind: str | None) -> Checkpoint:
    is_adapter = Kind(kind or kind_of(path)) is Kind.ADAPTER
    return open_adapter(path, None) if is_adapter else open_weights(path, None, Bases())
