"""The digest that names the content of a checkpoint: what `sha256sum` prints, digested."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

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


def check_digest(wanted: str | None, found: str, what: str) -> None:
    """Refuse bytes that are not the wanted ones.

    Args:
        wanted: The digest that is named; None for whatever there is.
        found: Of the bytes.
        what: What was read, for the message.

    Errors:
        Refusal: `DigestMismatch`.
    """
    if wanted not in (None, found):
        raise Refusal(
            Reason.DIGEST_MISMATCH,
            f"{what} have digest {found}, wanted is {wanted}. Restore the files, or publish them"
            " as another version",
        )
