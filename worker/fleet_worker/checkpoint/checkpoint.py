"""An open checkpoint: its files, their headers, and their bytes once these are in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_worker.checkpoint.blocks import Inspect, ZeroBlocks, blocks_between
from fleet_worker.checkpoint.deltas import Delta
from fleet_worker.checkpoint.files import FileState, OpenFile, Roots, is_uri
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.identity import Identity
from fleet_worker.checkpoint.keeping import OwnPass, Pass, Show, Work
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.pairs import Pair
from fleet_worker.checkpoint.reading import FileContent, inspect_nothing, read_files
from fleet_worker.checkpoint.same_files import check_same_files
from fleet_worker.checkpoint.texts import Texts
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import digest_of


@dataclass(frozen=True, slots=True)
class Changed:
    """The deltas between the weights of a checkpoint and those of its base. Only memory has the result.

    Fields:
        deltas: applied to the bytes of the base's files, the oldest first.
        states: name → state of the files in the delta's own directory.
        result_digest: of the whole weights, if the delta names it.
        published_bytes: of the newest delta.
        read_bytes: that a stage reads from the store.
        extra_bytes: memory that the base takes while it is read, besides that of the weights in the engine.
    """

    deltas: tuple[Delta, ...]
    states: Mapping[str, FileState]
    result_digest: str | None
    published_bytes: int
    read_bytes: int
    extra_bytes: int


@dataclass(slots=True)
class Checkpoint:
    """An open checkpoint.

    Fields:
        path: Real path of its directory, or URI of its prefix.
        config: Content of config.json, parsed.
        files: Its weight files.
        specs: File name → tensors of the file.
        companions: Name → (state, SHA-256) of the small files that are part of it.
        held: File name → its sealed bytes in memory. Empty if the files were only read.
        zero_blocks: Blocks of tensors with only zeros. None before the tensors were checked.
        texts: What the files next to the weights say.
        copies: Tensor that the files lack → the one that it equals (`tied`).
        casts: Tensor → the type to which a load casts it (`tensors`).
        pair: Two tensors that the next pass compares.
        is_pair_equal: Whether they are equal. None before they were compared.
        remarks: What of its files the running model does not use, or uses in another form.
        is_started_on: Whether the engine has started on it.
        changed: How it comes from the bytes of another one. None for a full checkpoint.
        is_of_memory: Whether `files` are descriptors of memory.
        is_from_peer: Whether a peer had its bytes.
        small: Name → content of the small files that were read with it.
        show: Gets its memory while a pass fills it.
        withdraw: Ends what serves its memory to peers. It is called before the memory is freed.
        shares_delta: Whether a pass shows the newest delta, too.
        delta_bytes: Memory of that delta, while peers may read it.
        withdraw_delta: Ends that.
    """

    path: str
    config: dict[str, Any]
    files: tuple[OpenFile, ...]
    specs: dict[str, tuple[TensorSpec, ...]]
    companions: dict[str, tuple[FileState, str]]
    held: dict[str, MemoryFile] = field(default_factory=dict)
    zero_blocks: ZeroBlocks | None = None
    texts: Texts = field(default_factory=Texts)
    copies: dict[str, str] = field(default_factory=dict)
    casts: dict[str, str] = field(default_factory=dict)
    pair: Pair | None = None
    is_pair_equal: bool | None = None
    remarks: tuple[str, ...] = ()
    is_started_on: bool = False
    changed: Changed | None = None
    is_of_memory: bool = False
    is_from_peer: bool = False
    small: Mapping[str, bytes] = field(default_factory=dict)
    show: Show | None = None
    withdraw: Callable[[], None] | None = None
    shares_delta: bool = False
    delta_bytes: int = 0
    withdraw_delta: Callable[[], None] | None = None
    _owns_files: bool = True
    _on_disk: Mapping[str, FileState] = field(default_factory=dict)
    _content: dict[str, FileContent] = field(default_factory=dict)
    _reading: Pass | None = None

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Tensor name → specification, over all files."""
        return {spec.name: spec for specs in self.specs.values() for spec in specs}

    @property
    def size_bytes(self) -> int:
        """Length of all weight files together."""
        return sum(file.state.size for file in self.files)

    @property
    def read_bytes(self) -> int:
        """The bytes that a stage reads from the store."""
        if self.is_from_peer:
            return 0
        return self.size_bytes if self.changed is None else self.changed.read_bytes

    @property
    def peer_bytes(self) -> int:
        """The bytes that a stage reads from a peer: of a delta its files."""
        if not self.is_from_peer:
            return 0
        return self.size_bytes if self.changed is None else self.changed.read_bytes

    @property
    def published_bytes(self) -> int | None:
        """The bytes of its weight files in the store: of a delta those of the newest. None if a peer had them."""
        if self.is_from_peer:
            return None
        return self.size_bytes if self.changed is None else self.changed.published_bytes

    @property
    def is_held(self) -> bool:
        """Whether all bytes are in memory, sealed."""
        return all(file.name in self.held for file in self.files)

    @property
    def is_only_in_memory(self) -> bool:
        """Whether only memory can have its bytes for a load: the result of a delta, a version of a store or a peer."""
        return self.changed is not None or self.is_from_peer or is_uri(self.path)

    @property
    def identity(self) -> Identity:
        """Identity of these files, without reading them."""
        states = sorted(self._states.items())
        files = tuple((name, s.size, s.inode, s.modified_ns) for name, s in states)
        return Identity(self.path, files)

    @property
    def _states(self) -> dict[str, FileState]:
        """Name → state of all files when they were opened."""
        if self.changed is not None:
            return dict(self.changed.states)
        small = {name: state for name, (state, _) in self.companions.items()}
        return small | self._file_states

    @property
    def _file_states(self) -> dict[str, FileState]:
        """Name → state of the weight files in the directory, also where `files` are of memory."""
        return {file.name: self._on_disk.get(file.name, file.state) for file in self.files}

    def read_all(
        self,
        *,
        budget: int,
        check_cancelled: Callable[[], None],
        inspect: Inspect = inspect_nothing,
    ) -> bool:
        """Read all bytes in this process; see `read_in`. `inspect` checks the tensors."""
        return self.read_in(OwnPass(inspect), budget=budget, check_cancelled=check_cancelled)

    def read_in(self, reading: Pass, *, budget: int, check_cancelled: Callable[[], None]) -> bool:
        """Read all bytes: check and digest them, and keep them in memory if they fit.

        Args:
            reading: The pass over the bytes.
            budget: Largest number of bytes to keep.
            check_cancelled: Called between pieces, in several threads. Raises to cancel.

        Returns:
            Whether the bytes are in memory.

        Errors:
            Refusal: from `reading` and `check_cancelled`, and `CheckpointChanged` if a file changed
                meanwhile.
        """
        self._reading = reading
        work = Work(
            files=self.files,
            specs=self.specs,
            deltas=self.changed.deltas if self.changed is not None else (),
            pair=self.pair,
            budget=budget,
            check_cancelled=check_cancelled,
            show=self.show,
            is_delta_shown=self.shares_delta,
        )
        found = reading.run(work)
        self._content, self.held, self._reading = found.content, found.held, None
        if self.held and self.is_only_in_memory:
            self._let_go_of_files()
        self.is_pair_equal = found.is_pair_equal
        zeros = [each.zero_blocks for each in found.content.values()]
        known = [each for each in zeros if each is not None]
        self.zero_blocks = _merged(known) if len(known) == len(zeros) else None
        return bool(self.held)

    def _let_go_of_files(self) -> None:
        """Close what was read, also the files of a base and of deltas: all bytes are in memory now."""
        opened, self._on_disk = [*self.files], self._file_states
        if self.changed is not None:
            opened += [file for delta in self.changed.deltas for file in delta.files]
            self.changed = replace(self.changed, deltas=(), extra_bytes=0)
        self.files = tuple(
            OpenFile(name, held.descriptor, FileState.of(held.descriptor))
            for name, held in self.held.items()
        )
        self.is_of_memory, self._owns_files = True, False
        for file in opened:
            file.close()

    def descriptor_of(self, file: OpenFile) -> int:
        """Return the descriptor to read a file from: its copy in memory, else the file."""
        held = self.held.get(file.name)
        return held.descriptor if held is not None else file.descriptor

    def link_of(self, file: OpenFile) -> str:
        """Return a path that leads to this very file, or its copy in memory, for all processes of the worker."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor_of(file)}"

    def duplicate(self, *, from_memory: bool = True) -> Checkpoint:
        """Return the same checkpoint with descriptors of its own.

        `from_memory`: those of its bytes in memory, if they are there; else those of its files.
        """
        files = []
        for file in self.files:
            is_held = from_memory and file.name in self.held
            descriptor = os.dup(self.descriptor_of(file) if is_held else file.descriptor)
            state = FileState.of(descriptor) if is_held else file.state
            files.append(OpenFile(file.name, descriptor, state))
        in_memory = self.is_of_memory or (from_memory and self.is_held)
        return replace(
            self,
            files=tuple(files),
            held={},
            is_of_memory=in_memory,
            show=None,
            withdraw=None,
            shares_delta=False,
            delta_bytes=0,
            withdraw_delta=None,
            _owns_files=True,
            _on_disk=self._file_states,
            _reading=None,
        )

    def changed_by(
        self,
        deltas: tuple[Delta, ...],
        *,
        path: str,
        states: Mapping[str, FileState],
        result_digest: str | None,
        extra_bytes: int,
    ) -> Checkpoint:
        """Return the checkpoint that deltas make from this one, which then owns its files and theirs.

        Args:
            deltas: The oldest first.
            path: Real path of the directory of the newest.
            states: see `Changed`.
            result_digest: see `Changed`.
            extra_bytes: see `Changed`.
        """
        read_bytes = sum(delta.size_bytes for delta in deltas)
        read_bytes += 0 if self.is_of_memory else self.size_bytes
        published_bytes = deltas[-1].size_bytes if deltas else 0
        changed = Changed(deltas, states, result_digest, published_bytes, read_bytes, extra_bytes)
        return Checkpoint(
            path,
            self.config,
            self.files,
            self.specs,
            self.companions,
            texts=self.texts,
            changed=changed,
            small=self.small,
        )

    def digest(self, check_cancelled: Callable[[], None]) -> str:
        """Return the digest to compare with `StageRequest.digest`.

        It is that of the bytes that were read last. Without such bytes the files are read now.
        """
        return digest_of(self.hashes(check_cancelled))

    def hashes(self, check_cancelled: Callable[[], None]) -> dict[str, str]:
        """Return file name → SHA-256 in hex, of all files of the checkpoint."""
        if not self._content:
            self._content = read_files(
                self.files,
                self.specs,
                inspect_nothing,
                check_cancelled,
                keep={},
                deltas=self.changed.deltas if self.changed is not None else (),
            )
        small = {name: digest for name, (_, digest) in self.companions.items()}
        return small | {name: content.sha256 for name, content in self._content.items()}

    def leave_memory(self, reading: Pass) -> None:
        """Free the memory of bytes that may be loaded again, then from the files. Blocks.

        Errors:
            Refusal: from `reading`; the bytes stay in memory.
        """
        kept = [
            OpenFile(file.name, descriptor, FileState.of(descriptor))
            for file in self.files
            for descriptor in (self.descriptor_of(file),)
        ]
        work = Work(files=kept, specs=self.specs, budget=0, check_cancelled=_go_on)
        self._content = reading.run(work).content
        self.release()

    def tensor_digests(self) -> dict[str, str]:
        """Return tensor name → digest (`digests.tensor_digest`), of the bytes that `digest` is of.

        Empty while the bytes are in memory.
        """
        return {name: d for each in self._content.values() for name, d in each.tensors.items()}

    def hollow_blocks(self) -> ZeroBlocks:
        """Return the blocks of tensors with parts that were never written and read as zeros."""
        return _merged(
            blocks_between(self.specs[file.name], begin, end)
            for file in self.files
            for begin, end in file.holes()
        )

    def written_ago_seconds(self, now: float) -> float:
        """Return the seconds since the last write to one of its files. `now`: seconds since the epoch."""
        states = [*self._file_states.values()]
        if self.changed is not None:
            states += self.changed.states.values()
        return now - max(state.modified_ns for state in states) / 1e9

    def check_unread(self) -> None:
        """Refuse with `CheckpointChanged` if files changed that a load would still read.

        Bytes in memory are sealed, so their files no longer matter.
        """
        for file in self.files:
            if file.name not in self.held:
                file.check_unchanged()

    def check_same_on_disk(self, roots: Roots | None) -> None:
        """Refuse with `CheckpointChanged` if the directory now has other files than these (`same_files`).

        Of bytes that a peer had, nothing is known about the directory.
        """
        if self.is_from_peer:
            raise Refusal(
                Reason.CHECKPOINT_CHANGED,
                "a peer had these bytes, so the files of the directory must be read to compare them",
            )
        for file in self.files:
            if not file.is_lost():
                file.check_unchanged()
        check_same_files(self.path, roots, self._states, {file.name for file in self.files})

    def drop_delta(self) -> None:
        """Free the memory of the delta that peers may read. Any thread may call it. Blocks for a moment."""
        withdraw, self.withdraw_delta = self.withdraw_delta, None
        if withdraw is not None:
            withdraw()
        self.delta_bytes = 0

    def release(self) -> None:
        """Free the memory. The files stay open.

        Any thread may call it. A read under way continues without keeping the bytes, or ends.
        """
        self.drop_delta()
        withdraw, self.withdraw = self.withdraw, None
        if withdraw is not None:
            withdraw()
        if (reading := self._reading) is not None:
            reading.release()
        for each in self.held.values():
            each.close()
        self.held = {}

    def close(self) -> None:
        """Free the memory and close the files. Safe to call again."""
        self.release()
        opened = [*self.files] if self._owns_files else []
        if self.changed is not None:
            opened += [file for delta in self.changed.deltas for file in delta.files]
            self.changed = replace(self.changed, deltas=())
        self.files = ()
        for file in opened:
            file.close()


def _go_on() -> None:
    return


def _merged(found: Iterable[ZeroBlocks]) -> ZeroBlocks:
    merged: dict[str, frozenset[int]] = {}
    for each in found:
        for name, blocks in each.items():
            merged[name] = merged.get(name, frozenset()) | blocks
    return merged
