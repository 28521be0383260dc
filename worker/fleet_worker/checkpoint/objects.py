"""Versions in object stores: prefixes as directories, and objects as files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

from fleet_worker.checkpoint import store_calls
from fleet_worker.checkpoint.files import (
    FileState,
    RemoteDirectory,
    RemoteFile,
    absent,
    check_not_aside,
)
from fleet_worker.checkpoint.stager_messages import ReadRange
from fleet_worker.errors import Refusal
from fleet_worker.protocol import ASIDE_MARK, Reason

_RANGE_BYTES = 8 * 1024 * 1024
_RANGES_AHEAD = 8
"""Of one file. With four files at once that is 256 MiB."""
_REQUESTS_AT_ONCE = 16
_HEAD_BYTES = 256 * 1024
"""Read at once from the begin of a file: most headers are shorter."""


@dataclass(frozen=True, slots=True)
class StoredFile(RemoteFile):
    """An object as a file of a checkpoint. It has no descriptor: the kernel refuses -1.

    Fields:
        uri: of the object.
        etag: of the object when it was listed. Each read demands it.
        fetched: asks the store for a range; in a stager directly.
    """

    uri: str = ""
    etag: str = ""
    fetched: Callable[[ReadRange], bytearray] = field(
        default=store_calls.fetched, compare=False, repr=False
    )
    _ahead: _Ahead = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ahead", _Ahead(self))

    def read(self, offset: int, length: int) -> bytes:
        """See `OpenFile.read`. The first bytes are read once."""
        end = min(offset + length, self.state.size)
        if end < offset + length:
            raise Refusal(Reason.CHECKPOINT_TRUNCATED, f"{self.name} ends too early")
        if end <= _HEAD_BYTES:
            return self._ahead.head()[offset:end]
        begins = range(offset, end, _RANGE_BYTES)
        return b"".join(self.fetch(begin, min(begin + _RANGE_BYTES, end)) for begin in begins)

    def read_into(self, piece: memoryview, position: int) -> None:
        """See `OpenFile.read_into`. Reads ahead, as long as the positions follow each other."""
        self._ahead.read_into(piece, position)

    def close(self) -> None:
        """Nothing is open. Requests under way end by themselves."""

    def fetch(self, begin: int, end: int) -> bytearray:
        """Return a part of the object. Errors: see `object_requests.answer_of`."""
        size = self.state.size
        return self.fetched(
            ReadRange(uri=self.uri, etag=self.etag, size=size, begin=begin, end=end)
        )


class _Ahead:
    """Reads a file from begin to end, some ranges ahead."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._coming: deque[tuple[int, Future[bytearray]]] = deque()
        self._next = 0
        self._head: bytes | None = None

    def head(self) -> bytes:
        if self._head is None:
            self._head = bytes(self._file.fetch(0, min(_HEAD_BYTES, self._file.state.size)))
        return self._head

    def read_into(self, piece: memoryview, position: int) -> None:
        done = 0
        while done < len(piece):
            begin, content = self._range_at(position + done)
            part = memoryview(content)[position + done - begin :][: len(piece) - done]
            piece[done : done + len(part)] = part
            done += len(part)

    def _range_at(self, position: int) -> tuple[int, bytearray]:
        size = self._file.state.size
        while self._coming and self._coming[0][0] + _RANGE_BYTES <= position:
            self._coming.popleft()
        if not self._coming or position < self._coming[0][0]:
            self._coming.clear()
            self._next = position
        while len(self._coming) < _RANGES_AHEAD and self._next < size:
            begin, self._next = self._next, min(self._next + _RANGE_BYTES, size)
            self._coming.append((begin, _requests().submit(self._file.fetch, begin, self._next)))
        begin, coming = self._coming[0]
        return begin, coming.result()


class StoredDirectory(RemoteDirectory):
    """The objects directly below a prefix, as they were listed."""

    def __init__(self, uri: str) -> None:
        """List a prefix.

        Errors:
            Refusal: `SourceAbsent` without objects; those of `object_requests.answer_of`.
        """
        self.path = uri
        self.small = {}
        found = store_calls.objects_below(uri)
        marks = [each for each in found if each.name.startswith(ASIDE_MARK)]
        check_not_aside((each.name, each.size) for each in marks)
        if len(found) == len(marks):
            raise absent()
        objects = [o for o in found if "/" not in o.name and o not in marks]
        self._etags = {o.name: o.etag for o in objects}
        # An ETag is the number of the file: another object has another one.
        self.states = {
            o.name: FileState(o.size, _number_of(o.etag), o.modified_ns, 0) for o in objects
        }
        self.names = frozenset(self.states)

    def of_state(self, name: str, state: FileState) -> StoredFile:
        """See `RemoteDirectory.of_state`."""
        return StoredFile(name, -1, state, f"{self.path}/{name}", self._etags[name])


def _number_of(etag: str) -> int:
    return int.from_bytes(hashlib.sha256(etag.encode()).digest()[:7])


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="rlfleet-store")
