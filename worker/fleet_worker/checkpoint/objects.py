"""Versions in object stores: prefixes as directories, and objects as files.

A store is untrusted. The worker asks only the endpoint of the fleet, and demands each range of an object with the
ETag that the listing had. So all bytes of a file are those of one object, and an object that is replaced while it is
read is a refusal. The worker counts what comes, and each request has a time limit.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import obstore

from fleet_worker.checkpoint.files import Directory, FileState, OpenFile, absent
from fleet_worker.checkpoint.object_errors import replaced, store_errors
from fleet_worker.checkpoint.object_stores import opened_store
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_RANGE_BYTES = 8 * 1024 * 1024
_RANGES_AHEAD = 8
"""Of one file. With four files at once that is 256 MiB."""
_REQUESTS_AT_ONCE = 16
_HEAD_BYTES = 256 * 1024
"""Read at once from the begin of a file: most headers are shorter."""
_MOST_OBJECTS = 10_000
"""In a directory, with what is below it."""
_MOST_BESIDE = 100_000
"""In a folder of versions."""
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile(OpenFile):
    """An object as a file of a checkpoint. It has no descriptor: the kernel refuses -1.

    Fields:
        uri: of the object.
        etag: of the object when it was listed. Each read demands it.
    """

    is_stored: ClassVar[bool] = True

    uri: str = ""
    etag: str = ""
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

    def check_unchanged(self) -> None:
        """Each read has demanded the ETag."""

    def is_lost(self) -> bool:
        """An object has no descriptor that could become stale."""
        return False

    def holes(self) -> Iterator[tuple[int, int]]:
        """A store has no holes."""
        yield from ()

    def close(self) -> None:
        """Nothing is open. Requests under way end by themselves."""

    def fetch(self, begin: int, end: int) -> bytearray:
        """Return a part of the object.

        Errors:
            Refusal: `CheckpointChanged` if the object is another one by now; `SourceNotFound`,
                `SourceUnreadable`.
        """
        content = bytearray(end - begin)
        if begin == end:
            return content
        done = 0
        with store_errors(self.uri):
            store, key = opened_store(self.uri)
            answer = obstore.get(store, key, options={"if_match": self.etag, "range": (begin, end)})
            if (
                _quoted(answer.meta["e_tag"] or "") != self.etag
                or answer.meta["size"] != self.state.size
            ):
                raise replaced(self.name)
            for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                if done + len(chunk) > len(content):
                    raise replaced(self.name)
                content[done : done + len(chunk)] = memoryview(chunk)
                done += len(chunk)
        if done < len(content):
            raise Refusal(
                Reason.SOURCE_UNREADABLE,
                f"the store ended {self.name} after {done} of {len(content)} bytes of a range",
            )
        return content


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


class StoredDirectory(Directory):
    """The objects directly below a prefix, as they were listed."""

    def __init__(self, uri: str) -> None:
        """List a prefix.

        Args:
            uri: Of the prefix, below the roots.

        Errors:
            Refusal: `SourceAbsent` without objects; `SourceNotFound`, `SourceUnreadable`.
        """
        self.path = uri
        self.small = {}
        found = _listed(uri)
        if not found:
            raise absent()
        self._objects = {name: each for name, each in found.items() if "/" not in name}
        self.names = frozenset(self._objects)

    def open(self, name: str) -> OpenFile:
        """Return one object as a file."""
        state = self.opened_state_of(name)
        if state is None:
            raise Refusal(Reason.SOURCE_NOT_FOUND, f"{name} does not exist")
        etag = _quoted(self._objects[name]["e_tag"])
        return StoredFile(name, -1, state, f"{self.path}/{name}", etag)

    def state_of(self, name: str) -> FileState | None:
        """Return the state of an object, or None if it was not listed."""
        return self.opened_state_of(name)

    def opened_state_of(self, name: str) -> FileState | None:
        """Return the state of an object, or None if it was not listed."""
        if (found := self._objects.get(name)) is None:
            return None
        modified_ns = int(found["last_modified"].timestamp() * 1e9)
        return FileState(found["size"], _number_of(found["e_tag"]), modified_ns, 0)

    def close(self) -> None:
        """Nothing is open."""


def folders_in(uri: str) -> list[str]:
    """Return the names of the folders below a prefix, sorted.

    It counts objects, page by page: the library's listing of folders has no limit.

    Errors:
        Refusal: `SourceUnreadable`, also if there are too many objects.
    """
    found, count = set[str](), 0
    with store_errors(uri):
        store, key = opened_store(uri)
        for page in obstore.list(store, key or None, chunk_size=1000):
            count += len(page)
            if count > _MOST_BESIDE:
                raise Refusal(
                    Reason.SOURCE_UNREADABLE, f"there are more than {_MOST_BESIDE} objects in {uri}"
                )
            for each in page:
                name, slash, _ = each["path"][len(key) :].lstrip("/").partition("/")
                if slash:
                    found.add(name)
    return sorted(found)


def _listed(uri: str) -> dict[str, Any]:
    """Return name below a prefix → what the listing has about the object."""
    found = dict[str, Any]()
    count = 0
    with store_errors(uri):
        store, key = opened_store(uri)
        for page in obstore.list(store, key, chunk_size=1000):
            count += len(page)
            for each in page:
                if not each["path"].startswith(f"{key}/"):
                    continue  # the empty object by which a browser shows a folder
                found[each["path"].removeprefix(f"{key}/")] = each
                if not each["e_tag"]:
                    raise Refusal(
                        Reason.SOURCE_UNREADABLE,
                        "the store lists objects without ETags, so that nothing would show that one was replaced;"
                        " use a store that has them",
                    )
            if count > _MOST_OBJECTS:  # also if they have all one name
                raise Refusal(
                    Reason.CHECKPOINT_MALFORMED,
                    f"there are more than {_MOST_OBJECTS} objects below {uri}; save each version under a prefix"
                    " of its own",
                )
    return found


def _quoted(etag: str) -> str:
    """Return an ETag as requests name it. Listings of Azure leave out the quotes."""
    return etag if etag.endswith('"') else f'"{etag}"'


def _number_of(etag: str) -> int:
    """Return an ETag as the number of a file: another object has another one."""
    return int.from_bytes(hashlib.sha256(etag.encode()).digest()[:7])


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="rlfleet-store")
