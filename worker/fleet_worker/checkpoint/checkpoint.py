"""An open checkpoint: its files, their headers, and their bytes once these are in memory.

`Inspector` is the port for the checks that need torch and transformers; `finite` implements it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.checkpoint.format import (
    INDEX_FILE,
    TensorSpec,
    all_tensors,
    has_other_weights,
    started_files,
)
from fleet_worker.checkpoint.identity import Identity, digest_of
from fleet_worker.checkpoint.reading import (
    FileContent,
    Inspect,
    ZeroBlocks,
    blocks_between,
    inspect_nothing,
    read_files,
)
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


@dataclass(slots=True)
class Checkpoint:
    """An open checkpoint.

    Fields:
        path: Real path of its directory.
        config: Content of config.json, parsed.
        files: Its weight files.
        specs: File name → tensors of the file.
        companions: Name → (state, SHA-256) of the small files that are part of it.
        held: File name → its sealed bytes in memory. Empty if the files were only read.
        zero_blocks: Blocks of tensors with only zeros. None before the tensors were checked.
        copies: Tensor that the files lack → the one that it equals (`tied`).
        is_started_on: Whether the engine has started on it.
    """

    path: str
    config: dict[str, Any]
    files: tuple[OpenFile, ...]
    specs: dict[str, tuple[TensorSpec, ...]]
    companions: dict[str, tuple[FileState, str]]
    held: dict[str, memory.MemoryFile] = field(default_factory=dict)
    zero_blocks: ZeroBlocks | None = None
    copies: dict[str, str] = field(default_factory=dict)
    is_started_on: bool = False
    _content: dict[str, FileContent] = field(default_factory=dict)
    _filling: dict[str, memory.MemoryFile] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Tensor name → specification, over all files."""
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
        """Identity of these files, without reading them."""
        states = {file.name: file.state for file in self.files}
        states |= {name: state for name, (state, _) in self.companions.items()}
        return Identity(
            self.path,
            tuple((name, s.size, s.inode, s.modified_ns) for name, s in sorted(states.items())),
        )

    def read_all(
        self,
        *,
        budget: int,
        check_cancelled: Callable[[], None],
        inspect: Inspect = inspect_nothing,
    ) -> bool:
        """Read all bytes once: check and digest them, and keep them in memory if they fit.

        The memory for all bytes is reserved before it is filled. If they exceed the budget, or if
        another process takes the memory first, they only go through the page cache.

        Args:
            budget: Largest number of bytes to keep.
            check_cancelled: Called between pieces, in several threads. Raises to cancel.
            inspect: Checks the tensors.

        Returns:
            Whether the bytes are in memory.

        Errors:
            Refusal: from `inspect` and `check_cancelled`, and `CheckpointChanged` if a file changed
                meanwhile.
        """
        if self.size_bytes <= min(budget, memory.memory_left()):
            self._filling = {
                file.name: memory.MemoryFile(file.name, file.state.size) for file in self.files
            }
        filling = self._filling

        def reserve() -> None:
            try:
                memory.reserve(filling.values(), check_cancelled)
            except memory.NotEnoughMemoryError:
                self.release()
            except BaseException:
                self.release()  # also wakes the threads that wait for memory
                raise

        try:
            self._content = read_files(
                self.files,
                self.specs,
                inspect,
                check_cancelled,
                keep=filling,
                meanwhile=reserve,
            )
            for file in self.files:
                file.check_unchanged()
            if inspect is not inspect_nothing:
                self.zero_blocks = _merged(each.zero_blocks for each in self._content.values())
            check_cancelled()
            for each in self._filling.values():
                each.seal()
        except BaseException:
            self.release()
            raise
        self.held, self._filling = self._filling, {}
        return bool(self.held)

    def descriptor_of(self, file: OpenFile) -> int:
        """Return the descriptor to read a file from: its copy in memory, else the file."""
        held = self.held.get(file.name)
        return held.descriptor if held is not None else file.descriptor

    def digest(self, check_cancelled: Callable[[], None]) -> str:
        """Return the digest to compare with `StageRequest.digest`.

        It is that of the bytes that were read last. Without such bytes the files are read now.
        """
        return digest_of(self.hashes(check_cancelled))

    def hashes(self, check_cancelled: Callable[[], None]) -> dict[str, str]:
        """Return file name → SHA-256 in hex, of all files of the checkpoint."""
        if not self._content:
            self._content = read_files(
                self.files, self.specs, inspect_nothing, check_cancelled, keep={}
            )
        small = {name: digest for name, (_, digest) in self.companions.items()}
        return small | {name: content.sha256 for name, content in self._content.items()}

    def hollow_blocks(self) -> ZeroBlocks:
        """Return the blocks of tensors with parts that were never written and read as zeros."""
        return _merged(
            blocks_between(self.specs[file.name], begin, end)
            for file in self.files
            for begin, end in file.holes()
        )

    def written_ago_seconds(self, now: float) -> float:
        """Return the seconds since the last write to one of its files.

        Args:
            now: Seconds since the epoch.
        """
        return now - max(file.state.modified_ns for file in self.files) / 1e9

    def check_unread(self) -> None:
        """Refuse with `CheckpointChanged` if files changed that a load would still read.

        Bytes in memory are sealed, so their files no longer matter.
        """
        for file in self.files:
            if file.name not in self.held:
                file.check_unchanged()

    def check_same_on_disk(self, roots: Roots | None) -> None:
        """Refuse with `CheckpointChanged` if the directory now has other files than these.

        A deleted directory is not a change. Its files are open here, and trainers delete old versions at
        any time.
        """
        for file in self.files:
            if not file.is_lost():
                file.check_unchanged()
        directory = self._directory_now(roots)
        if directory is None:
            return
        try:
            opened = {file.name: file.state for file in self.files}
            opened |= {name: state for name, (state, _) in self.companions.items()}
            for name, state in opened.items():
                now = directory.state_of(name)
                if now is not None and now != state:
                    raise Refusal(
                        Reason.CHECKPOINT_CHANGED,
                        f"{name} changed after it was staged; publish the new files as another"
                        " version",
                    )
            if has_other_weights(directory.names, opened):
                raise Refusal(
                    Reason.CHECKPOINT_CHANGED,
                    "the directory has its weights in other files than when it was staged",
                )
        finally:
            directory.close()

    def check_start(self) -> None:
        """Refuse with `CheckpointMalformed` if vLLM, started on the directory, reads other files.

        vLLM opens the files by name, and chooses them by rules of its own. A deleted directory passes, as in
        `check_same_on_disk`.
        """
        if glob.escape(self.path) != self.path:
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED,
                f"vLLM takes the name {self.path} for a pattern and may start on other directories",
            )
        if (directory := self._directory_now(None)) is None:
            return
        directory.close()
        digested = {file.name for file in self.files}
        if different := started_files(directory.names, digested | set(self.companions)) ^ digested:
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED,
                f"vLLM would start on other files than the weights, such as {min(different)}: without"
                " an index it reads all .safetensors files, except hidden ones; move files that are"
                f" not part of the weights, or write {INDEX_FILE}",
            )

    def _directory_now(self, roots: Roots | None) -> OpenDirectory | None:
        """Open the directory again. None if it was deleted."""
        try:
            return OpenDirectory(self.path, roots)
        except Refusal as refusal:
            if refusal.reason is Reason.SOURCE_ABSENT:
                return None
            raise

    def release(self) -> None:
        """Free the memory. The files stay open.

        Any thread may call it. A read under way continues without keeping the bytes.
        """
        for each in (*self.held.values(), *self._filling.values()):
            each.close()
        self.held, self._filling = {}, {}

    def close(self) -> None:
        """Free the memory and close the files. Safe to call again."""
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


class Inspector(Protocol):
    """The checks of checkpoints that need torch and transformers. They block: run them in a thread."""

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        """Read all bytes of a checkpoint once, digest them, and keep them within the budget.

        Returns:
            Whether the bytes are in memory.

        Errors:
            Refusal: a tensor has an infinity or a NaN.
        """

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration with its defaults filled in."""
