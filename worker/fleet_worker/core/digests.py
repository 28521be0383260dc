"""The digest that names the content of a checkpoint: what `sha256sum` prints, digested."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

PREFIX = "sha256:"


def manifest_of(hashes: Mapping[str, str]) -> str:
    """The manifest: one line a file, `<sha256>  <name>`, sorted by name.

    Args:
        hashes: File name → SHA-256 in hex.
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def digest_of(hashes: Mapping[str, str]) -> str:
    """SHA-256 of the manifest, as `spec.digest` and `StageRequest.digest` want it."""
    # Names are bytes to the file system and to `sha256sum`; not all of them are UTF-8.
    manifest = manifest_of(hashes).encode(errors="surrogateescape")
    return PREFIX + hashlib.sha256(manifest).hexdigest()
