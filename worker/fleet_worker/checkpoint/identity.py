"""The identity of a checkpoint: the digest of its bytes, and the one version that names them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

PREFIX = "sha256:"


def manifest_of(hashes: Mapping[str, str]) -> str:
    """Return the manifest: one line per file, `<sha256>  <name>`, sorted by name.

    Args:
        hashes: File name → SHA-256 in hex.
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def digest_of(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 of the manifest, in the form of `spec.digest` and `StageRequest.digest`."""
    # Names are bytes for the file system and `sha256sum`, and may not be UTF-8.
    manifest = manifest_of(hashes).encode(errors="surrogateescape")
    return PREFIX + hashlib.sha256(manifest).hexdigest()


def check_digest(wanted: str | None, found: str, what: str) -> None:
    """Refuse bytes with another digest.

    Args:
        wanted: The digest to compare with. None accepts all.
        found: Digest of the bytes.
        what: Plural name of the bytes, for the message.

    Errors:
        Refusal: `DigestMismatch`.
    """
    if wanted not in (None, found):
        raise Refusal(
            Reason.DIGEST_MISMATCH,
            f"{what} have digest {found}, expected {wanted}. Restore the files, or publish them as"
            " another version",
        )


# A trainer with one step per minute fills this in three days. By then no replay buffer has tokens of
# the older meaning of a label.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of files that were read, to recognise them without reading them again.

    Fields:
        source: Their place, as text.
        files: (name, size, inode, modification time in ns) of every file, sorted by name.
    """

    source: str
    files: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A version and its scope. The same version in another scope is another label.

    Fields:
        scope: The run that the version belongs to. If a trainer names no runs, the path of its
            directory, because another run writes to another directory.
    """

    version: str
    scope: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" + (f" of {self.scope}" if self.scope is not None else "")


@dataclass(frozen=True, slots=True)
class _Known:
    digest: str
    source: str


class Labels:
    """Remembers the digest of each label."""

    def __init__(self) -> None:
        self._known: OrderedDict[Label, _Known] = OrderedDict()

    def check(self, label: Label, digest: str, source: str) -> None:
        """Refuse a label that already names other bytes.

        Args:
            label: The label of the weights.
            digest: Digest of their bytes.
            source: Their place, for the message.

        Errors:
            Refusal: `VersionReused`, because tokens already carry this label for other weights.
        """
        known = self._known.get(label)
        if known is None or known.digest == digest:
            return
        raise Refusal(
            Reason.VERSION_REUSED,
            f"{label} already names the weights from {known.source} with {known.digest} on this"
            f" worker; those from {source} have {digest}. Publish other weights under another"
            " version or another run",
        )

    def remember(self, label: Label, digest: str, source: str) -> None:
        """Note the digest of a label."""
        self._known[label] = _Known(digest, source)
        self._known.move_to_end(label)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)
