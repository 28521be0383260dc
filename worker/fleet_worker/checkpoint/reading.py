"""Read files in one pass: read, check, digest and keep each piece.

Other processes may write or shrink the files at any time. So they are read into buffers and never
mapped, because a mapped file that shrinks ends the process (SIGBUS).

One thread reads a file and checks its pieces, and two others digest them (`digests`). Several files are
read at the same time. All slow calls (`preadv`, `hashlib`, `pwrite`, numpy) release the interpreter's lock. Between
them Python runs, so the pass is as slow as the lock: see `keeping`.
"""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.checkpoint.blocks import Inspect, ZeroBlocks, blocks_of_zeros, pieces_of
from fleet_worker.checkpoint.deltas import Delta
from fleet_worker.checkpoint.digests import Digests
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.patching import Patches, files_at_once
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_PIECE_BYTES = 4 * 1024 * 1024
"""At least one block of every type."""
_FILES_AT_ONCE = 4
"""Each takes three threads: a reader and two for digests."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """Result of one pass over a file.

    Fields:
        sha256: in hex.
        tensors: tensor name → its digest (`digests.tensor_digest`); empty if the bytes are kept.
        zero_blocks: of its tensors. None if these were not checked.
    """

    sha256: str
    tensors: Mapping[str, str]
    zero_blocks: ZeroBlocks | None


def inspect_nothing(_spec: TensorSpec, _piece: memoryview) -> bool:
    """Check nothing: the `Inspect` of a pass that only needs the digest."""
    return True


def read_files(
    files: Sequence[OpenFile],
    specs: Mapping[str, Sequence[TensorSpec]],
    inspect: Inspect,
    check_cancelled: Callable[[], None],
    *,
    keep: Mapping[str, MemoryFile],
    deltas: Sequence[Delta] = (),
) -> dict[str, FileContent]:
    """Read files once, from begin to end. Blocks.

    Args:
        files: Open regular files.
        specs: File name → its tensors, in the order of their bytes.
        inspect: Checks every block, called in several threads.
        check_cancelled: Called between pieces, in several threads. Raises to cancel.
        keep: File name → memory that gets a copy of its bytes. The tensors of other files are digested.
        deltas: Applied to the bytes of each tensor, the oldest first, before anything else is done with them.

    Errors:
        Refusal: the first one from `inspect` and `check_cancelled`. `CheckpointChanged` if a file is
            shorter than when it was opened. `SourceUnreadable`. `CheckpointMalformed` and `DeltaMismatch`
            from a delta.
        NotEnoughMemoryError: there is not enough memory to keep the bytes.
    """
    readers = _Readers(check_cancelled, files_at_once(deltas, _FILES_AT_ONCE))

    def read(file: OpenFile) -> FileContent:
        patches = Patches(deltas)
        return _read_file(
            file, specs[file.name], inspect, readers.check, keep.get(file.name), patches
        )

    return readers.run(files, read)


class _Readers:
    """Threads that take files from one queue and read them."""

    def __init__(self, check_cancelled: Callable[[], None], at_once: int) -> None:
        self._check_cancelled = check_cancelled
        self._at_once = at_once
        self._failures: list[BaseException] = []
        self._found: dict[str, FileContent] = {}

    def check(self) -> None:
        """Raise if the pass was cancelled, or if one of its files was refused."""
        if self._failures:
            raise Refusal(Reason.SUPERSEDED, "another file of the checkpoint was refused")
        self._check_cancelled()

    def run(
        self, files: Sequence[OpenFile], read: Callable[[OpenFile], FileContent]
    ) -> dict[str, FileContent]:
        """Read all files; return the results by name, or raise the first error."""
        todo = deque(files)
        count = max(1, min(len(files), self._at_once, processors() // 2))
        threads = [
            threading.Thread(
                target=self._read_queue,
                args=(todo, read),
                name=f"rlfleet-read-{number}",
                daemon=True,
            )
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        return self._found

    def _read_queue(self, todo: deque[OpenFile], read: Callable[[OpenFile], FileContent]) -> None:
        while not self._failures:
            try:
                file = todo.popleft()
            except IndexError:
                return
            try:
                self._found[file.name] = read(file)
            except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
                self._failures.append(error)


def _read_file(
    file: OpenFile,
    specs: Sequence[TensorSpec],
    inspect: Inspect,
    check_cancelled: Callable[[], None],
    keep: MemoryFile | None,
    patches: Patches,
) -> FileContent:
    size = file.state.size
    digested = specs if keep is None else ()
    digests = Digests(digested, max(1, min(_PIECE_BYTES, size)), ahead=size > _PIECE_BYTES)
    zeros = defaultdict[str, set[int]](set)
    try:
        for begin, end, parts in pieces_of(specs, size, most_bytes=_PIECE_BYTES):
            check_cancelled()
            piece = digests.next_buffer()[: end - begin]
            file.read_into(piece, begin)
            check_cancelled()  # again, because the read may have been slow
            for spec, first, last in parts:
                patches.apply(spec, first, piece[first - begin : last - begin])
            digests.follow(piece)
            if keep is not None:
                keep.write(piece, begin)
            for spec, first, last in parts:
                content = piece[first - begin : last - begin]
                zeros[spec.name].update(blocks_of_zeros(spec, content, first, inspect))
    finally:
        sha256, tensors = digests.finish()
    zero_blocks = {name: frozenset(blocks) for name, blocks in zeros.items() if blocks}
    return FileContent(sha256, tensors, None if inspect is inspect_nothing else zero_blocks)


_V2 = "/sys/fs/cgroup/cpu.max"
_V1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def processors() -> int:
    """Return how many processors this process may use: those of its affinity, at most its CPU limit."""
    usable = len(os.sched_getaffinity(0))
    limit = _limit()
    return usable if limit is None else max(1, min(usable, math.ceil(limit)))


def _limit() -> float | None:
    """Return the CPU limit of this container (control groups of version 2 or 1), or None without one."""
    for files in ((_V2,), _V1):
        try:
            quota, period = " ".join(Path(file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return int(quota) / int(period) if quota.isdigit() and int(period) > 0 else None
    return None
