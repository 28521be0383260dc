"""The files of a full checkpoint without the bytes of its tensors, and the digest of both.

A delta has the digest of its result: the files of its base with the new bytes. So a delta is possible only
between checkpoints whose files differ in nothing but these bytes.

Source: section "Format" of the README in the repository `huggingface/safetensors`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlfleet.deltas.index import index_of
from rlfleet.errors import UnusableWeights
from rlfleet_resources.weight_files import (
    CONFIG_FILE,
    HEADER_LIMIT,
    INDEX_FILE,
    LENGTH_BYTES,
    SINGLE_FILE,
    digest_of,
)

TEXTS = (CONFIG_FILE, "generation_config.json", "tokenizer_config.json", "chat_template.jinja")
"""The texts of a checkpoint that a worker reads. It takes those of a delta's base."""
_NOTES = "__metadata__"
_ALIGNMENT = 8
_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file. `begin`, `end`: byte positions in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin

    @property
    def elements(self) -> int:
        """Elements; those of types with less than a byte count by bytes."""
        return self.size // self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of an element, at least 1."""
        count = 1
        for size in self.shape:
            count *= size
        return max(self.size // count, 1) if count else 1


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file without the bytes of its tensors.

    Fields:
        prefix: its first bytes, up to the first tensor.
        tensors: in the order of their bytes, without gaps.
    """

    name: str
    prefix: bytes
    tensors: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.tensors[-1].end if self.tensors else len(self.prefix)


@dataclass(frozen=True, slots=True)
class Layout:
    """A full checkpoint without the bytes of its tensors.

    Fields:
        files: its weight files.
        texts: name → content of the files of `TEXTS` that it has.
        index: the content of its index; None without one.
    """

    files: tuple[WeightFile, ...]
    texts: Mapping[str, bytes]
    index: bytes | None

    @property
    def size(self) -> int:
        """Bytes of the weight files."""
        return sum(file.size for file in self.files)

    @property
    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(entry.elements for file in self.files for entry in file.tensors)

    @property
    def largest_tensor(self) -> int:
        """Bytes of the largest tensor."""
        return max((entry.size for file in self.files for entry in file.tensors), default=0)

    def digest(self, hashes: Mapping[str, str]) -> str:
        """The digest of the whole weights, as workers compute it.

        It is that of the weight files, config.json, and the index if there is one.

        `hashes`: name of each weight file → its SHA-256 in hex.
        """
        small = {CONFIG_FILE: self.texts[CONFIG_FILE]}
        small |= {INDEX_FILE: self.index} if self.index is not None else {}
        own = {name: hashlib.sha256(text).hexdigest() for name, text in small.items()}
        return digest_of({**hashes, **own})

    def difference(self, new: Layout) -> str:
        """The difference of `new` in anything but bytes of tensors; empty without one."""
        mine, others = _signatures(self), _signatures(new)
        if added := sorted(others.keys() - mine.keys()):
            return f"it has new tensors, such as {added[0]}"
        if removed := sorted(mine.keys() - others.keys()):
            return f"it lacks tensors, such as {removed[0]}"
        for name, (dtype, shape) in others.items():
            if mine[name] != (dtype, shape):
                was, old_shape = mine[name]
                return f"{name} is {dtype} {[*shape]}, and was {was} {[*old_shape]}"
        for name in TEXTS:
            if self.texts.get(name) != new.texts.get(name):
                return f"its {name} is another one"
        if self.files != new.files or self.index != new.index:
            return "its tensors are in other files, or have another order or header there"
        return ""


def parsed(name: str, prefix: bytes, size: int) -> WeightFile:
    """A file from its first bytes. Errors: UnusableWeights.

    Args:
        name: Its name.
        prefix: The length of the header, and the header.
        size: Bytes of the whole file.
    """
    start = len(prefix)
    try:
        entries = json.loads(prefix[LENGTH_BYTES:].decode())
        tensors = [
            _entry(tensor, entry, start) for tensor, entry in entries.items() if tensor != _NOTES
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UnusableWeights(f"{name} is not a safetensors file; save the weights again") from None
    tensors.sort(key=lambda entry: (entry.begin, entry.end))
    position = start
    for entry in tensors:
        if entry.begin != position or entry.end < position:
            raise UnusableWeights(f"the tensors of {name} overlap or leave a gap")
        position = entry.end
    if position != size:
        raise UnusableWeights(
            f"{name} has {size} bytes, but its header describes {position}; save the weights again, and "
            "give them only when that has ended"
        )
    return WeightFile(name, prefix, tuple(tensors))


def header_length(name: str, first: bytes, size: int) -> int:
    """The length of a file's header, from its first 8 bytes. Errors: UnusableWeights."""
    length = struct.unpack("<Q", first)[0] if len(first) == LENGTH_BYTES else size
    if not 0 < length <= min(size - LENGTH_BYTES, HEADER_LIMIT):
        raise UnusableWeights(f"{name} is not a whole safetensors file; save the weights again")
    return int(length)


def prefix_of(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]], notes: Mapping[str, str]
) -> bytes:
    """The first bytes of a file whose tensors follow without gaps.

    Args:
        tensors: Name, type, shape and bytes of each, in order.
        notes: Its metadata.
    """
    header: dict[str, Any] = {_NOTES: dict(notes)} if notes else {}
    position = 0
    for name, dtype, shape, size in tensors:
        offsets = [position, position + size]
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": offsets}
        position += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def layout_of(
    signatures: Mapping[str, tuple[str, tuple[int, ...], int]], texts: Mapping[str, bytes]
) -> Layout:
    """The files in which a state dict is written: one, or several of up to 5 GB.

    Args:
        signatures: Name → type, shape and bytes of each tensor.
        texts: As for `Layout`.
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for name, (_, _, size) in signatures.items():
        if shards[-1] and filled + size > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return Layout((_made(SINGLE_FILE, shards[0], signatures),), texts, None)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    files = [_made(file, shard, signatures) for file, shard in zip(names, shards, strict=True)]
    places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    total = sum(size for _, _, size in signatures.values())
    return Layout(tuple(files), texts, index_of(places, {"total_size": total}))


def _made(
    file: str, names: list[str], signatures: Mapping[str, tuple[str, tuple[int, ...], int]]
) -> WeightFile:
    # Large elements first, so that each tensor begins at a multiple of the size of its elements.
    def order(name: str) -> tuple[int, str]:
        dtype, shape, size = signatures[name]
        return -Entry(name, dtype, shape, 0, size).item_bytes, name

    tensors = [(name, *signatures[name]) for name in sorted(names, key=order)]
    prefix = prefix_of(tensors, {"format": "pt"})
    return parsed(file, prefix, len(prefix) + sum(size for *_, size in tensors))


def _signatures(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {e.name: (e.dtype, e.shape) for file in layout.files for e in file.tensors}


def _entry(name: str, entry: Any, start: int) -> Entry:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    return Entry(name, str(entry["dtype"]), shape, start + begin, start + end)
