"""The index of a delta: against which base it was made, and which tensors it changes.

A delta has the layout of a checkpoint: an index, and safetensors files. It has only the tensors that changed,
each as a zstd frame. The metadata of the index says that it is a delta. slime and miles write this form; ours
has the digests of the base and of the result in addition.

Source: the page "Delta weight sync" of slime's documentation, August 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from fleet_worker.checkpoint.format import parse_json
from fleet_worker.checkpoint.weight_sets import parse_index
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason, VersionLabel, WeightsDigest
from rlfleet_resources.weight_files import INDEX_FILE, Encoding


class ChecksumFormat(StrEnum):
    """The checksum of a tensor's new bytes, in hex."""

    XXH3 = "xxh3-128"
    BLAKE3 = "blake3"
    ADLER32 = "adler32"

    @property
    def digits(self) -> int:
        """The number of hex digits."""
        return {ChecksumFormat.XXH3: 32, ChecksumFormat.BLAKE3: 64, ChecksumFormat.ADLER32: 8}[self]


@dataclass(frozen=True, slots=True)
class DeltaIndex:
    """The index of a delta.

    Fields:
        version / base_version: as the trainer counts, such as `000043`.
        places: changed tensor → file.
        base_digest / result_digest: of the whole weights. None in slime's form.
    """

    version: str
    base_version: str
    encoding: Encoding
    checksums: ChecksumFormat
    places: Mapping[str, str]
    base_digest: str | None
    result_digest: str | None


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


_Version = Annotated[VersionLabel, BeforeValidator(_as_text)]


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: _Version
    base_version: _Version
    delta_encoding: Encoding
    compression_format: Literal["zstd"]
    checksum_format: ChecksumFormat
    base_digest: WeightsDigest | None = None
    result_digest: WeightsDigest | None = None

    @model_validator(mode="after")
    def _check_digests(self) -> Self:
        # The digest of a base in files is not computed: that of the result shows that it is the right one.
        if self.base_digest is not None and self.result_digest is None:
            raise ValueError("base_digest needs result_digest")
        return self


_SIGNS = ("base_version", "delta_encoding")
"""Keys that the index of a full checkpoint does not have."""


def delta_index(index: bytes) -> DeltaIndex | None:
    """Return the index of a delta, or None if `INDEX_FILE` is that of a full checkpoint, or of none.

    Errors: Refusal `CheckpointMalformed`, if the index of a delta is not valid.
    """
    try:
        metadata = parse_json(index, file=INDEX_FILE)["metadata"]
        is_delta = any(sign in metadata for sign in _SIGNS)
    except (ValueError, KeyError, TypeError):
        return None
    if not is_delta:
        return None
    try:
        found = _Metadata.model_validate(metadata)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        name = first["loc"][0] if first["loc"] else "metadata"
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} is that of a delta, and its {name} is not valid: {first['msg']}",
        ) from invalid
    return DeltaIndex(
        found.version,
        found.base_version,
        found.delta_encoding,
        found.checksum_format,
        parse_index(index, may_be_empty=True),
        found.base_digest,
        found.result_digest,
    )


def is_same_version(one: str, other: str) -> bool:
    """Return whether two texts name the same version: `000043` and `43` do."""
    if one == other:
        return True
    return all(t.isascii() and t.isdigit() for t in (one, other)) and int(one) == int(other)
