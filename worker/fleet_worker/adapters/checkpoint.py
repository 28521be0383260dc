"""One checkpoint, open: its files, what they claim to hold, and (once held) their bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet_worker.adapters import memory
from fleet_worker.adapters.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.core.digests import digest_of
from fleet_worker.core.labels import Identity
from fleet_worker.core.layout import all_tensors
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason

_CHUNK = 16 * 1024 * 1024


@dataclass(slots=True)
class Checkpoint:
    """An open checkpoint.

    Fields:
        path: Real path of its directory.
        config: Content of config.json, parsed.
        files: Its weight files.
        specs: File name → tensors of the file.
        companions: Name → (state, SHA-256) of the small files that count as part of it.
        held: File name → descriptor of the sealed bytes in memory; empty if only warmed.
    """

    path: str
    config: dict[str, Any]
    files: tuple[OpenFile, ...]
    specs: dict[str, tuple[TensorSpec, ...]]
    companions: dict[str, tuple[FileState, str]]
    held: dict[str, int] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Tensor name → specification over all files."""
        return all_tensors(self.specs)

    @property
    def size_bytes(self) -> int:
        """Length of all weight files together."""
        return sum(file.state.size for file in self.files)

    @property
    def identity(self) -> Identity:
        """What these weights are recognised by."""
        states = {file.name: file.state for file in self.files}
        states |= {name: state for name, (state, _) in self.companions.items()}
        return Identity(
            self.path,
            tuple((name, s.size, s.inode, s.modified_ns) for name, s in sorted(states.items())),
        )

    def hold(self, *, budget: int, go_on: Callable[[], None]) -> bool:
        """Bring all bytes into memory, or, beyond the budget, into the page cache.

        Returns whether they are held in memory.
        """
        fits = self.size_bytes <= min(budget, memory.memory_left())
        for file in self.files:
            if fits:
                self.held[file.name] = memory.hold(file, go_on)
            else:
                memory.warm(file, go_on)
            file.check_unchanged()
        return fits

    def descriptor_of(self, file: OpenFile) -> int:
        """Where to read a file's bytes: the held copy, else the file."""
        return self.held.get(file.name, file.descriptor)

    def digest(self, go_on: Callable[[], None]) -> str:
        """The digest that `StageRequest.digest` is compared with."""
        return digest_of(self.hashes(go_on))

    def hashes(self, go_on: Callable[[], None]) -> dict[str, str]:
        """File name → SHA-256 in hex of all files that count as part of the checkpoint."""
        hashes = {name: digest for name, (_, digest) in self.companions.items()}
        for file in self.files:
            sha = hashlib.sha256()
            for piece in self._pieces(file, go_on):
                sha.update(piece)
            hashes[file.name] = sha.hexdigest()
        return hashes

    def check_unread(self) -> None:
        """Refuse with `CheckpointChanged` if files that a load would still read were written to.

        Bytes in memory are sealed; of a checkpoint that is held there is nothing left to read.
        """
        for file in self.files:
            if file.name not in self.held:
                file.check_unchanged()

    def check_same_on_disk(self, roots: Roots | None) -> None:
        """Refuse with `CheckpointChanged` if the directory now holds other files than these.

        A directory that is gone is no change: its bytes are open here, and trainers delete old
        versions at any time.
        """
        for file in self.files:
            file.check_unchanged()
        try:
            directory = OpenDirectory(self.path, roots)
        except Refusal as refusal:
            if refusal.reason is Reason.SOURCE_NOT_FOUND:
                return
            raise
        try:
            opened = {file.name: file.state for file in self.files}
            opened |= {name: state for name, (state, _) in self.companions.items()}
            for name, state in opened.items():
                now = directory.state_of(name)
                if now is not None and now != state:
                    raise Refusal(
                        Reason.CHECKPOINT_CHANGED,
                        f"{name} is not the file that was staged; stage the version again under"
                        " another label",
                    )
        finally:
            directory.close()

    def release(self) -> None:
        """Give the memory back; the files stay open."""
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held = {}

    def close(self) -> None:
        """Give everything back. Safe to call again."""
        self.release()
        for file in self.files:
            os.close(file.descriptor)
        self.files = ()

    def _pieces(self, file: OpenFile, go_on: Callable[[], None]) -> Iterator[bytes]:
        descriptor, position = self.descriptor_of(file), 0
        while position < file.state.size:
            go_on()
            piece = os.pread(descriptor, _CHUNK, position)
            if not piece:
                raise Refusal(Reason.CHECKPOINT_CHANGED, f"{file.name} shrank while it was read")
            position += len(piece)
            yield piece
