"""Open deltas: where the frames of their changed tensors lie.

The worker and its stagers read the same headers of the same open files, so neither sends names to the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_worker.checkpoint.delta_index import ChecksumFormat
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec, parse_header, parse_metadata
from fleet_worker.checkpoint.headers import header_of
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import Encoding

_MISMATCH_RETRY_SECONDS = 60.0
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Change:
    """One changed tensor of a delta.

    Fields:
        begin / end: of its zstd frame in the file.
        checksum: of its new bytes, in hex.
    """

    file: OpenFile
    begin: int
    end: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Delta:
    """One open delta.

    Fields:
        name: of its directory, for messages.
        files: its files, which are open.
        changes: tensor name → its change.
        index: content of its index, if it names the digest of its base; else empty.
    """

    name: str
    encoding: Encoding
    checksums: ChecksumFormat
    files: tuple[OpenFile, ...]
    changes: Mapping[str, Change] = field(repr=False)
    index: bytes = field(default=b"", repr=False)

    @property
    def is_stored(self) -> bool:
        """Whether an object store has its files."""
        return any(file.is_stored for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Length of its files together."""
        return sum(file.state.size for file in self.files)


def delta_of(
    name: str, encoding: Encoding, checksums: ChecksumFormat, files: Sequence[OpenFile]
) -> Delta:
    """Return the delta in some open files.

    Args:
        name: Of its directory.
        encoding: What its index says.
        checksums: What its index says.
        files: Its files. Their headers have the frames, and their metadata has the checksums.

    Errors:
        Refusal: `CheckpointMalformed`, `CheckpointTruncated`.
    """
    changes: dict[str, Change] = {}
    for file in files:
        for spec, change in _changes(file, checksums):
            if changes.setdefault(spec.name, change) is not change:
                raise _malformed(file, spec, "is in another of its files, too")
    return Delta(name, encoding, checksums, tuple(files), changes)


def _changes(file: OpenFile, checksums: ChecksumFormat) -> Iterator[tuple[TensorSpec, Change]]:
    header = header_of(file)
    noted = parse_metadata(header, file=file.name)
    for spec in parse_header(header, file=file.name, size=file.state.size):
        checksum = noted.get(spec.name, "")
        if spec.dtype != "U8" or len(spec.shape) != 1 or spec.end == spec.begin:
            raise _malformed(file, spec, "is not a zstd frame (U8, one dimension)")
        if len(checksum) != checksums.digits or not _HEX.fullmatch(checksum):
            raise _malformed(file, spec, f"has no checksum ({checksums}) in the file's metadata")
        yield spec, Change(file, spec.begin, spec.end, checksum)


def delta_mismatch(message: str) -> Refusal:
    """Return the refusal of a delta that does not give the bytes that were published.

    The worker does not remember it with the files of the delta, since its cause may be another directory.
    """
    return Refusal(
        Reason.DELTA_MISMATCH,
        f"{message}. Publish the version in full",
        retry_after_seconds=_MISMATCH_RETRY_SECONDS,
    )


def _malformed(file: OpenFile, spec: TensorSpec, problem: str) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_MALFORMED,
        f"the entry {spec.name[:200]!r} in {file.name} of a delta {problem}",
    )
