"""The index of a checkpoint, `model.safetensors.index.json`, which also says whether it is a delta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlfleet.errors import UnusableWeights

_BASE = "base_version"
_ENCODING = "delta_encoding"


def index_of(places: Mapping[str, str], notes: Mapping[str, Any]) -> bytes:
    """The content of an index. `places`: tensor → file. `notes`: its metadata."""
    content = {"metadata": dict(notes), "weight_map": dict(sorted(places.items()))}
    return json.dumps(content, indent=2).encode()


def delta_index(
    places: Mapping[str, str],
    *,
    version: str,
    base_version: str,
    encoding: str,
    base_digest: str,
    result_digest: str,
) -> bytes:
    """The content of a delta's index. `places`: changed tensor → file. `encoding`: `xor` or `overwrite`."""
    notes = {
        "version": version,
        _BASE: base_version,
        _ENCODING: encoding,
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
        "base_digest": base_digest,
        "result_digest": result_digest,
    }
    return index_of(places, notes)


def delta_versions(name: str, index: bytes) -> tuple[str, str] | None:
    """The version of a delta and that of its base; None for a full checkpoint. Errors: UnusableWeights."""
    notes = _parsed(name, index).get("metadata")
    if not isinstance(notes, dict) or not notes.keys() & {_BASE, _ENCODING}:
        return None
    return str(notes.get("version", "unknown")), str(notes.get(_BASE, "unknown"))


def indexed_files(name: str, index: bytes) -> set[str]:
    """The files that an index names. Errors: UnusableWeights."""
    places = _parsed(name, index).get("weight_map")
    if not isinstance(places, dict):
        raise UnusableWeights(f"{name} has no weight_map; save the weights again")
    return {str(file) for file in places.values()}


def _parsed(name: str, index: bytes) -> dict[str, Any]:
    try:
        found = json.loads(index)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnusableWeights(f"{name} is not a JSON object; save the weights again")
    return found
