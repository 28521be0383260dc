"""Where the bytes of full weights come from: a directory, a state dict, or a copy in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from rlfleet.deltas.index import delta_versions, indexed_files
from rlfleet.deltas.layout import TEXTS, Entry, Layout, WeightFile, header_length, layout_of, parsed
from rlfleet.deltas.tensors import Bytes, bytes_of, signature_of
from rlfleet.errors import UnusableWeights
from rlfleet_resources.weight_files import CONFIG_FILE, INDEX_FILE, LENGTH_BYTES, SINGLE_FILE

_ENDINGS = (".json", ".jinja", ".txt", ".model")
_LARGEST_BESIDE = 256 * 1024 * 1024


class Source(Protocol):
    """Full weights.

    Fields:
        layout: their files.
        others: paths of the files that are not weights: configuration, and those of the tokenizer.
        digest: their digest; None before a pass has computed it.
        is_copy: whether the arrays that `read` returns are the reader's own.
    """

    layout: Layout
    others: tuple[Path, ...]
    digest: str | None
    is_copy: bool

    def read(self, file: WeightFile, entry: Entry) -> Bytes:
        """The bytes of a tensor. Errors: UnusableWeights."""
        ...

    def check_unchanged(self) -> None:
        """Errors: UnusableWeights if what was read is not there any more."""
        ...

    def close(self) -> None:
        """Close files."""
        ...


class FromDirectory:
    """A full checkpoint in a directory. Files that change meanwhile are an error."""

    digest: str | None = None
    is_copy = True

    def __init__(self, directory: Path) -> None:
        """Read headers and configuration. Errors: UnusableWeights."""
        self._directory = directory
        self._open: dict[str, int] = {}
        self._states: dict[str, tuple[int, ...]] = {}
        try:
            self.layout = self._layout()
            self.others = others_in(directory)
        except OSError as error:
            self.close()
            raise UnusableWeights(f"{directory} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _layout(self) -> Layout:
        names = {path.name for path in self._directory.iterdir()}
        index = (self._directory / INDEX_FILE).read_bytes() if INDEX_FILE in names else None
        weights = {n for n in names if n.endswith(".safetensors") and not n.startswith(".")}
        if index is not None:
            if (versions := delta_versions(INDEX_FILE, index)) is not None:
                raise UnusableWeights(
                    f"{self._directory} holds a delta, version {versions[0]}; give the full checkpoint that "
                    "the trainer has saved for this version"
                )
            indexed = indexed_files(INDEX_FILE, index)
            if indexed != weights:
                odd = min(indexed ^ weights)
                raise UnusableWeights(
                    f"{self._directory} and its {INDEX_FILE} name different files, such as {odd}; save the "
                    "checkpoint into a directory of its own"
                )
        elif SINGLE_FILE in weights and len(weights) > 1:
            raise UnusableWeights(
                f"{self._directory} has weights next to {SINGLE_FILE}, such as "
                f"{min(weights - {SINGLE_FILE})}; save the checkpoint into a directory of its own"
            )
        if not weights:
            raise UnusableWeights(
                f"{self._directory} has no .safetensors file; save the full weights there first"
            )
        texts = read_texts(self._directory)
        files = tuple(self._file(name) for name in sorted(weights))
        places = dict[str, str]()
        for file in files:
            for entry in file.tensors:
                if (other := places.setdefault(entry.name, file.name)) != file.name:
                    raise UnusableWeights(
                        f"{entry.name} is in {other} and in {file.name} of {self._directory}, as parts of a "
                        "sharded model are; merge them first, for files of torch.distributed.checkpoint with "
                        "HuggingFaceStorageWriter(…, enable_consolidation=True)"
                    )
        return Layout(files, texts, index)

    def _file(self, name: str) -> WeightFile:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        self._open[name] = descriptor
        self._states[name] = _state(descriptor)
        size = os.fstat(descriptor).st_size
        first = os.pread(descriptor, LENGTH_BYTES, 0)
        length = header_length(name, first, size)
        return parsed(name, first + os.pread(descriptor, length, LENGTH_BYTES), size)

    def read(self, file: WeightFile, entry: Entry) -> Bytes:
        """The bytes of a tensor."""
        found: Bytes = np.empty(entry.size, np.uint8)
        view, done = found.data, 0
        try:
            while done < entry.size:
                count = os.preadv(self._open[file.name], [view[done:]], entry.begin + done)
                if not count:
                    raise self._changed(file.name)
                done += count
        except OSError as error:
            raise UnusableWeights(
                f"{self._directory / file.name} cannot be read: {error}"
            ) from error
        return found

    def check_unchanged(self) -> None:
        """Compare size, time and place of each file with those at the beginning."""
        for name, state in self._states.items():
            try:
                now = (self._directory / name).stat()
                is_same = _state(self._open[name]) == state == _of(now)
            except OSError:
                is_same = False
            if not is_same:
                raise self._changed(name)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def _changed(self, name: str) -> UnusableWeights:
        return UnusableWeights(
            f"{self._directory / name} changed while it was read; keep the files of a version as they "
            "are, and try again"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class FromStateDict:
    """The tensors of numpy or torch that a trainer holds. They must not change meanwhile."""

    digest: str | None = None
    is_copy = False

    def __init__(self, state_dict: Mapping[str, Any], config_from: Path) -> None:
        """Plan the files.

        Args:
            state_dict: Name → tensor, with the names of the checkpoint.
            config_from: A directory with config.json and the tokenizer's files.

        Errors: UnusableWeights.
        """
        if not state_dict:
            raise UnusableWeights("the state dict has no tensors")
        self._tensors = state_dict
        signatures = {
            name: (*signature_of(name, one), int(one.nbytes)) for name, one in state_dict.items()
        }
        try:
            self.layout = layout_of(signatures, read_texts(config_from))
            self.others = others_in(config_from)
        except OSError as error:
            raise UnusableWeights(f"{config_from} cannot be read: {error}") from error

    def read(self, file: WeightFile, entry: Entry) -> Bytes:  # noqa: ARG002 - see Source
        """The bytes of a tensor."""
        return bytes_of(self._tensors[entry.name])

    def check_unchanged(self) -> None:
        """Nothing can be compared."""

    def close(self) -> None:
        """Nothing is open."""


class InMemory:
    """A copy of the weights that were written last."""

    others: tuple[Path, ...] = ()
    is_copy = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.digest: str | None = None
        self._tensors: dict[str, Bytes] = {}

    def read(self, file: WeightFile, entry: Entry) -> Bytes:  # noqa: ARG002 - see Source
        """The bytes of a tensor."""
        return self._tensors[entry.name]

    def keep(self, name: str, data: Bytes, *, is_copy: bool) -> None:
        """Keep the bytes of a tensor. `is_copy`: nothing else uses the array."""
        if is_copy:
            self._tensors[name] = data
        elif (mine := self._tensors.get(name)) is not None:
            np.copyto(mine, data)
        else:
            self._tensors[name] = data.copy()

    def check_unchanged(self) -> None:
        """It changes with each version only."""

    def close(self) -> None:
        """Nothing is open."""


def read_texts(directory: Path) -> dict[str, bytes]:
    """The content of config.json and of the other texts that a worker reads. Errors: UnusableWeights; OSError."""
    if not (directory / CONFIG_FILE).is_file():
        raise UnusableWeights(
            f"{directory} has no {CONFIG_FILE}, which describes the weights; save the model's there"
        )
    texts = (directory / name for name in TEXTS)
    return {file.name: file.read_bytes() for file in texts if file.is_file()}


def others_in(directory: Path) -> tuple[Path, ...]:
    """The files of a checkpoint that are not weights: configuration, and the tokenizer's files."""
    return tuple(
        path
        for path in sorted(directory.iterdir())
        if path.name.endswith(_ENDINGS)
        and not path.name.startswith(".")
        and path.name != INDEX_FILE
        and path.is_file()
        and path.stat().st_size <= _LARGEST_BESIDE
    )


def _state(descriptor: int) -> tuple[int, ...]:
    return _of(os.fstat(descriptor))


def _of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
