"""One pass over the bytes of files, which may keep them in sealed memory.

A pass runs in this process (`OwnPass`), or in a process of its own (`stager_pass.StagerPass`). Python runs for
each piece of bytes. Next to a busy event loop it would wait for the interpreter's lock each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.blocks import Inspect
from fleet_worker.checkpoint.deltas import Delta, delta_of
from fleet_worker.checkpoint.files import FileState, OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.headers import begin_of
from fleet_worker.checkpoint.lengths import Lengths
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.pairs import Pair, are_equal
from fleet_worker.checkpoint.reading import FileContent, inspect_nothing, read_files
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_NO_ROOM_RETRY_SECONDS = 30.0
_COPY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a pass.

    Fields:
        content: file name → what is known of its bytes.
        held: file name → its sealed bytes in memory. Empty if they were only read.
        is_pair_equal: whether two tensors have the same bytes; None without a request for it.
    """

    content: dict[str, FileContent]
    held: dict[str, MemoryFile]
    is_pair_equal: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a pass.

    Fields:
        files: open regular files.
        specs: file name → its tensors, in the order of their bytes.
        deltas: applied to the bytes, the oldest first. Then no file has the bytes that are digested.
        pair: two tensors to compare.
        budget: largest number of bytes to keep.
        check_cancelled: called after each progress, in any thread. Raises to cancel.
        show: gets the memory while it is being filled.
        is_delta_shown: show the newest delta, too, if there is room for it. Its files are read into memory first.
    """

    files: Sequence[OpenFile]
    specs: Mapping[str, Sequence[TensorSpec]]
    deltas: Sequence[Delta] = ()
    pair: Pair | None = None
    budget: int
    check_cancelled: Callable[[], None]
    show: Show | None = None
    is_delta_shown: bool = False

    @property
    def size_bytes(self) -> int:
        """Length of the files together."""
        return sum(file.state.size for file in self.files)


class Pass(Protocol):
    """One pass over the bytes of files."""

    def run(self, work: Work) -> Found:
        """Read all bytes once: digest them, check them, and keep them if they fit. Blocks.

        Errors:
            Refusal: any of the checkpoint reasons, `SourceUnreadable`, and from `check_cancelled`. With deltas
                or files of a store or a peer, and a budget: `NotAvailable`, if the bytes do not fit.
        """

    def release(self) -> None:
        """Free the memory that is being filled. Any thread may call it, and again."""


Show = Callable[[Sequence[int], int], None]
"""Shows memory that is being filled: one descriptor for each file, those of a delta's files, and that of the lengths
of the first ones (`lengths`). The descriptors are the caller's. Without any, the memory will not be filled after all.
"""

Passes = Callable[[Mapping[str, str] | None], Pass]
"""Makes passes. The argument: tensor → the type to which a load casts it, to refuse infinities and NaNs; None
for a pass that only digests.
"""


def no_room(size: int, room: int) -> Refusal:
    """Return the refusal of a version that can only be in memory, and has no place there (both in bytes)."""
    return Refusal(
        Reason.NOT_AVAILABLE,
        f"there is not enough memory for {size} bytes: {room} are free for them, next to the weights in the"
        " engine. The result of a delta, and a version of an object store, are kept in memory only. Raise the"
        " memory limit of the pod or --staging-memory-bytes to twice the size of the weights, or publish the"
        " version in full on a volume",
        retry_after_seconds=_NO_ROOM_RETRY_SECONDS,
    )


@contextmanager
def _fetched(
    deltas: Sequence[Delta], check_cancelled: Callable[[], None], *, is_newest_kept: bool
) -> Iterator[Sequence[Delta]]:
    """Give deltas whose files are in memory, if a store or a peer has them: their frames are read in small parts.

    `is_newest_kept`: those of the newest one in any case.
    """
    with ExitStack() as unless_read:
        local = []
        for delta in deltas:
            copies = []
            is_kept = delta.is_stored or (is_newest_kept and delta is deltas[-1])
            for file in delta.files if is_kept else ():
                copy = _copied(file, check_cancelled)
                unless_read.callback(copy.close)
                copies.append(OpenFile(file.name, copy.descriptor, FileState.of(copy.descriptor)))
            local.append(
                delta_of(delta.name, delta.encoding, delta.checksums, copies) if copies else delta
            )
        yield local


def _has_room(work: Work) -> bool:
    """Whether the files of the newest delta fit next to its result. Those of a store or a peer are in memory in any
    case.
    """
    delta = work.deltas[-1]
    more = 0 if delta.is_stored else delta.size_bytes
    return work.size_bytes + more <= min(work.budget, memory.memory_left())


def _copied(file: OpenFile, check_cancelled: Callable[[], None]) -> MemoryFile:
    size = file.state.size
    copy = MemoryFile(file.name, size)
    try:
        for begin in range(0, size, _COPY_BYTES):
            check_cancelled()
            piece = memoryview(bytearray(min(_COPY_BYTES, size - begin)))
            file.read_into(piece, begin)
            copy.write(piece, begin)
        copy.seal()
    except memory.NotEnoughMemoryError as error:
        copy.close()
        raise no_room(size, memory.memory_left()) from error
    except BaseException:
        copy.close()
        raise
    return copy


class OwnPass:
    """A pass in threads of this process."""

    def __init__(self, inspect: Inspect = inspect_nothing) -> None:
        """`inspect`: checks the tensors."""
        self._inspect = inspect
        self._filling: dict[str, MemoryFile] = {}

    def run(self, work: Work) -> Found:
        """See `Pass.run`. If another process takes the memory first, the bytes are read without keeping them."""
        is_kept = work.is_delta_shown and _has_room(work)
        with _fetched(work.deltas, work.check_cancelled, is_newest_kept=is_kept) as local:
            return self._run(replace(work, deltas=local), local[-1].files if is_kept else ())

    def _run(self, work: Work, others: Sequence[OpenFile]) -> Found:
        files, check_cancelled, show = work.files, work.check_cancelled, work.show
        size, room = work.size_bytes, min(work.budget, memory.memory_left())
        must_fit = work.budget > 0 and (bool(work.deltas) or any(file.is_stored for file in files))
        if must_fit and size > room:
            raise no_room(size, room)
        if size <= room:
            self._filling = {file.name: MemoryFile(file.name, file.state.size) for file in files}
        read = partial(
            read_files, files, work.specs, self._inspect, check_cancelled, deltas=work.deltas
        )
        try:
            with self._shown(show, others):
                try:
                    if show is not None:
                        self._keep_headers(files, check_cancelled)
                    content = read(keep=self._filling)
                except memory.NotEnoughMemoryError as error:
                    self.release()
                    if show is not None:
                        show((), -1)
                    if must_fit:
                        raise no_room(size, memory.memory_left()) from error
                    content = read(keep={})
            is_pair_equal = self._compare(work, content)
            for file in (*files, *(file for delta in work.deltas for file in delta.files)):
                file.check_unchanged()
            check_cancelled()
            for each in self._filling.values():
                each.seal()
        except BaseException:
            self.release()
            raise
        held, self._filling = self._filling, {}
        return Found(content, held, is_pair_equal)

    def _keep_headers(self, files: Sequence[OpenFile], check_cancelled: Callable[[], None]) -> None:
        """Keep the headers of all files before the first tensor: a peer needs them to begin. The pass writes the
        same bytes again.
        """
        for file in files:
            check_cancelled()
            if (kept := self._filling.get(file.name)) is not None:
                kept.write(memoryview(begin_of(file)), 0)

    def _compare(self, work: Work, content: Mapping[str, FileContent]) -> bool | None:
        """Whether two tensors have the same bytes; None without a pair."""
        pair = work.pair
        if pair is None:
            return None
        if self._filling:
            return are_equal(pair, work.files, work.specs, work.check_cancelled, held=self._filling)
        # The files may lack what deltas change.
        tensors = {name: sha for each in content.values() for name, sha in each.tensors.items()}
        return tensors[pair[0]] == tensors[pair[1]]

    @contextmanager
    def _shown(self, show: Show | None, others: Sequence[OpenFile]) -> Iterator[None]:
        """Show the memory and other whole files, and keep the lengths up to date in this block."""
        kept = list(self._filling.values())
        if show is None or not kept:
            yield
            return
        with closing(Lengths.of(len(kept))) as lengths:
            for number, each in enumerate(kept):
                each.note_written = partial(lengths.note, number)
            whole = [each.descriptor for each in others]
            show([*(each.descriptor for each in kept), *whole], lengths.descriptor)
            yield

    def release(self) -> None:
        """Free the memory. A read under way continues without keeping the bytes."""
        for each in self._filling.values():
            each.close()
        self._filling = {}
