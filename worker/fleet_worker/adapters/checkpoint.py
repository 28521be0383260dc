"""One checkpoint, open: its files, what they claim to hold, and (once held) their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fleet_worker.adapters import memory
from fleet_worker.adapters.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.adapters.reading import (
    FileContent,
    Look,
    ZeroBlocks,
    blocks_between,
    looks_at_nothing,
    read_files,
)
from fleet_worker.core.digests import digest_of
from fleet_worker.core.labels import Identity
from fleet_worker.core.layout import all_tensors
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason


@dataclass(slots=True)
class Checkpoint:
    """An open checkpoint.

    Fields:
        path: Real path of its directory.
        config: Content of config.json, parsed.
        files: Its weight files.
        specs: File name → tensors of the file.
        companions: Name → (state, SHA-256) of the small files that count as part of it.
        held: File name → its sealed bytes in memory; empty if they were only read.
        zero_blocks: Blocks of tensors that hold nothing but zeros; None until they were looked at.
    """

    path: str
    config: dict[str, Any]
    files: tuple[OpenFile, ...]
    specs: dict[str, tuple[TensorSpec, ...]]
    companions: dict[str, tuple[FileState, str]]
    held: dict[str, memory.MemoryFile] = field(default_factory=dict)
    zero_blocks: ZeroBlocks | None = None
    _content: dict[str, FileContent] = field(default_factory=dict)
    _filling: dict[str, memory.MemoryFile] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Tensor name → specification over all files."""
        return all_tensors(self.specs)

    @property
    def size_bytes(self) -> int:
        """Length of all weight files together."""
        return sum(file.state.size for file in self.files)

    @property
    def is_held(self) -> bool:
        """Whether all bytes are in memory, sealed."""
        return all(file.name in self.held for file in self.files)

    @property
    def identity(self) -> Identity:
        """What these weights are recognised by."""
        states = {file.name: file.state for file in self.files}
        states |= {name: state for name, (state, _) in self.companions.items()}
        return Identity(
            self.path,
            tuple((name, s.size, s.inode, s.modified_ns) for name, s in sorted(states.items())),
        )

    def hold(
        self, *, budget: int, go_on: Callable[[], None], look: Look = looks_at_nothing
    ) -> bool:
        """Read all bytes once: judge and digest them, and hold them in memory if they fit.

        Memory is reserved for all of them before it is filled. Beyond the budget, and where the
        reservation shows that others were faster, the bytes only go through the page cache.

        Args:
            budget: How many bytes may be held.
            go_on: Called between pieces, in several threads; raises to give up.
            look: Judges the tensors.

        Returns:
            Whether they are held in memory.

        Errors:
            Refusal: of `look` and `go_on`; `CheckpointChanged` if a file was written to meanwhile.
        """
        if self.size_bytes <= min(budget, memory.memory_left()):
            self._filling = {
                file.name: memory.MemoryFile(file.name, file.state.size) for file in self.files
            }
        filling = self._filling

        def reserve() -> None:
            try:
                memory.reserve(filling.values(), go_on)
            except memory.NotEnoughMemoryError:
                self.release()
            except BaseException:
                self.release()  # who waits for memory waits no longer
                raise

        try:
            self._content = read_files(
                self.files, self.specs, look, go_on, keep=filling, meanwhile=reserve
            )
            for file in self.files:
                file.check_unchanged()
            if look is not looks_at_nothing:
                self.zero_blocks = _merged(each.zero_blocks for each in self._content.values())
            go_on()
            for each in self._filling.values():
                each.seal()
        except BaseException:
            self.release()
            raise
        self.held, self._filling = self._filling, {}
        return bool(self.held)

    def descriptor_of(self, file: OpenFile) -> int:
        """Where to read a file's bytes: the held copy, else the file."""
        held = self.held.get(file.name)
        return held.descriptor if held is not None else file.descriptor

    def digest(self, go_on: Callable[[], None]) -> str:
        """The digest that `StageRequest.digest` is compared with.

        Of the bytes that were read last; they are read now if they were not before.
        """
        return digest_of(self.hashes(go_on))

    def hashes(self, go_on: Callable[[], None]) -> dict[str, str]:
        """File name → SHA-256 in hex of all files that count as part of the checkpoint."""
        if not self._content:
            self._content = read_files(self.files, self.specs, looks_at_nothing, go_on, keep={})
        hashes = {name: digest for name, (_, digest) in self.companions.items()}
        return hashes | {name: content.sha256 for name, content in self._content.items()}

    def hollow_blocks(self) -> ZeroBlocks:
        """Blocks of tensors that were never written, wholly or in part; they read as zeros."""
        return _merged(
            blocks_between(self.specs[file.name], begin, end)
            for file in self.files
            for begin, end in file.holes()
        )

    def written_ago_seconds(self, now: float) -> float:
        """How long ago the latest of its files was written to.

        Args:
            now: Seconds since the epoch.
        """
        return now - max(file.state.modified_ns for file in self.files) / 1e9

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
            if refusal.reason is Reason.SOURCE_ABSENT:
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
        """Give the memory back; the files stay open.

        From any thread: a pass over the bytes that is under way goes on without keeping them.
        """
        for each in (*self.held.values(), *self._filling.values()):
            each.close()
        self.held, self._filling = {}, {}

    def close(self) -> None:
        """Give everything back. Safe to call again."""
        self.release()
        for file in self.files:
            os.close(file.descriptor)
        self.files = ()


def _merged(found: Iterable[ZeroBlocks]) -> ZeroBlocks:
    merged: dict[str, frozenset[int]] = {}
    for each in found:
        for name, blocks in each.items():
            merged[name] = merged.get(name, frozenset()) | blocks
    return merged
