"""Write a version: in full, or as a delta.

A delta has one encoding, because its index has one field for it. A sample of the tensors says which one is
smaller. That is `xor` where elements have changed a little everywhere, since few bits of each differ. It is
`overwrite` where few elements of a tensor have changed.

The directory of a delta has nothing but the index and the changed tensors, as that of slime: configuration and
texts are those of the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlfleet.deltas.directories import copy, new_file, size_of, write
from rlfleet.deltas.encoding import LARGEST_POSITION, Difference, encode
from rlfleet.deltas.index import delta_index
from rlfleet.deltas.layout import Entry, prefix_of
from rlfleet.deltas.passes import Pass, Progress
from rlfleet.deltas.sources import InMemory, Source
from rlfleet.deltas.tensors import Bytes, checksum
from rlfleet_resources.weight_files import INDEX_FILE, Encoding

_FILE_BYTES = 1 << 30
"""The largest part of a delta in memory: then a file is written."""
_SAMPLED_TENSORS = 8
_SAMPLED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta that was written.

    Fields:
        base_digest, result_digest: of the whole weights.
        changed_share: elements with another bit, 0 to 1.
        changed_tensors: tensors that the delta has.
        encoding: how it is written.
        written_bytes: of its files.
        full_bytes: of the weight files of the full checkpoint.
    """

    base_digest: str
    result_digest: str
    changed_share: float
    changed_tensors: int
    encoding: Encoding
    written_bytes: int
    full_bytes: int


class TooMuchChanged(Exception):
    """More elements have changed than a delta is meant for."""


def write_full(source: Source, folder: Path, held: InMemory | None, progress: Progress) -> str:
    """Write a full checkpoint. Returns its digest.

    Args:
        source: The weights.
        folder: An empty directory.
        held: Keeps a copy of them; None for no copy.
        progress: Takes the bytes of each tensor.

    Errors: UnusableWeights; OSError.
    """

    def keep(entry: Entry, data: Bytes) -> Bytes:
        if held is not None:
            held.keep(entry.name, data, is_copy=source.is_copy)
        return data

    layout = source.layout
    with Pass((source,), keep, progress) as passing:
        for file in layout.files:
            with new_file(folder / file.name) as out:
                out.write(file.prefix)
                for _, data in passing.tensors(file):
                    out.write(data.data)
        digest = passing.digest(0)
    copy(source.others, folder)
    source.check_unchanged()
    if layout.index is not None:
        write(folder / INDEX_FILE, layout.index)
    return digest


def write_delta(
    base: Source,
    new: Source,
    folder: Path,
    *,
    version: str,
    base_version: str,
    progress: Progress,
    most_changed: float = 1.0,
) -> Delta:
    """Write the difference of two checkpoints with the same layout. A base in memory becomes the new one.

    Args:
        base: The weights before.
        new: The new weights.
        folder: An empty directory.
        version: The version of the new weights.
        base_version: The version of the base.
        progress: Takes the bytes of each tensor.
        most_changed: Which share of the elements may have changed, 0 to 1.

    Errors: TooMuchChanged, UnusableWeights, OSError.
    """
    encoding = smaller_encoding(base, new)
    files, changed, elements = _Files(folder), 0, new.layout.elements

    def work(entry: Entry, old: Bytes, data: Bytes) -> tuple[Difference, str] | None:
        found = encode(old, data, encoding, entry.item_bytes)
        if found is None:
            return None
        if isinstance(base, InMemory):
            base.keep(entry.name, data, is_copy=new.is_copy)
        return found, checksum(data)

    with Pass((base, new), work, progress) as passing:
        for file in new.layout.files:
            for entry, found in passing.tensors(file):
                if found is None:
                    continue
                difference, new_checksum = found
                changed += difference.changed_elements
                if changed > most_changed * elements:
                    raise TooMuchChanged
                files.add(entry.name, difference.frame, new_checksum)
        base_digest, result_digest = passing.digest(0), passing.digest(1)
    places = files.finish()
    base.check_unchanged()
    new.check_unchanged()
    index = delta_index(
        places,
        version=version,
        base_version=base_version,
        encoding=encoding,
        base_digest=base_digest,
        result_digest=result_digest,
    )
    write(folder / INDEX_FILE, index)
    return Delta(
        base_digest=base_digest,
        result_digest=result_digest,
        changed_share=changed / elements if elements else 0.0,
        changed_tensors=len(places),
        encoding=encoding,
        written_bytes=size_of(folder),
        full_bytes=new.layout.size,
    )


def smaller_encoding(base: Source, new: Source) -> Encoding:
    """The encoding that is smaller for a sample of the tensors; `xor` where positions do not fit 32 bits."""
    if new.layout.largest_tensor > LARGEST_POSITION:
        return Encoding.XOR
    sizes = dict.fromkeys(Encoding, 0)
    every = [(file, entry) for file in new.layout.files for entry in file.tensors]
    for file, entry in every[:: len(every) // _SAMPLED_TENSORS + 1]:
        old, data = base.read(file, entry), new.read(file, entry)
        for encoding in Encoding:
            found = encode(old[:_SAMPLED_BYTES], data[:_SAMPLED_BYTES], encoding, entry.item_bytes)
            sizes[encoding] += len(found.frame) if found is not None else 0
    return min(sizes, key=lambda encoding: sizes[encoding])


class _Files:
    """The files of a delta. How many there are is in their names, so they get these at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames: list[tuple[str, bytes, str]] = []
        self._bytes = 0
        self._written: list[list[str]] = []

    def add(self, name: str, frame: bytes, new_checksum: str) -> None:
        """Take the encoded difference of a tensor, and the checksum of its new bytes."""
        self._frames.append((name, frame, new_checksum))
        self._bytes += len(frame)
        if self._bytes >= _FILE_BYTES:
            self._write()

    def finish(self) -> dict[str, str]:
        """Write what is left. Returns tensor → file."""
        if self._frames:
            self._write()
        places: dict[str, str] = {}
        for number, names in enumerate(self._written):
            file = f"model-{number:05}-of-{len(self._written):05}.safetensors"
            self._part(number).rename(self._folder / file)
            places |= dict.fromkeys(names, file)
        return places

    def _write(self) -> None:
        tensors = [(name, "U8", (len(frame),), len(frame)) for name, frame, _ in self._frames]
        checksums = {name: found for name, _, found in self._frames}
        with new_file(self._part(len(self._written))) as out:
            out.write(prefix_of(tensors, checksums))
            for _, frame, _ in self._frames:
                out.write(frame)
        self._written.append(list(checksums))
        self._frames, self._bytes = [], 0

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}"
