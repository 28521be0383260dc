"""Open the files of a checkpoint once, and never by name again.

All later reads use the descriptors. So a link that moves or a directory that is renamed after the check
cannot make the worker read files outside of the roots.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from fleet_worker.checkpoint.os_errors import os_errors
from fleet_worker.errors import Refusal
from fleet_worker.protocol import ASIDE_MARK, Reason

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang the worker
_CHUNK = 1024 * 1024
_ABSENT_RETRY_SECONDS = 5.0
"""Seconds until a retry for a directory that does not exist."""


def is_uri(place: str) -> bool:
    """Return whether a place is in an object store (`s3://…`). Others are directories."""
    return "://" in place


def check_not_aside(sizes: Iterable[tuple[str, int]]) -> None:
    """Refuse a version of a store that a collector has marked, also where the bucket is mounted.

    Args:
        sizes: Name and size of each of its files. A collector has taken back a mark without bytes.

    Errors:
        Refusal: `SourceAbsent`.
    """
    mark = next((name for name, size in sizes if name.startswith(ASIDE_MARK) and size), None)
    if mark is not None:
        raise absent(
            f"a collector has put the version aside ({mark[:100]}), and deletes it or gives it back"
        )


def absent(why: str = "the source does not exist") -> Refusal:
    """Return the refusal of a place that does not exist yet, or not any more."""
    return Refusal(
        Reason.SOURCE_ABSENT,
        why,
        retry_after_seconds=_ABSENT_RETRY_SECONDS,
    )


class Roots:
    """The only directories, and prefixes in object stores, that weights may come from."""

    def __init__(self, places: Sequence[str | os.PathLike[str]]) -> None:
        """`places`: absolute paths and URIs."""
        given = [_normal(os.fspath(place)) for place in places]
        self._real = tuple(os.path.realpath(each) for each in given if not is_uri(each))
        self._named = tuple(dict.fromkeys([*given, *self._real]))

    def __str__(self) -> str:
        return ", ".join(self._named)

    def check_name(self, path: str) -> None:
        """Refuse a path whose name is not below a root.

        It opens nothing, so that no caller can learn which files exist outside of the roots.
        """
        if "\0" in path or not (path.startswith("/") or is_uri(path)):
            raise Refusal(
                Reason.SOURCE_OUTSIDE_ROOTS, "the source must be an absolute path or a URI"
            )
        if not _is_below(_normal(path), self._named):
            raise Refusal(
                Reason.SOURCE_OUTSIDE_ROOTS, f"the source is not below a weights root ({self})"
            )

    def root_of(self, path: str) -> str:
        """Return the root of a path by its name, or the path itself if it is below no root."""
        below = [root for root in self._named if _is_below(_normal(path), (root,))]
        return max(below, key=len, default=path)

    def contain(self, path: str) -> bool:
        """Return whether a real place is a root or below one."""
        return _is_below(path, self._named if is_uri(path) else self._real)

    def check_opened(self, descriptor: int) -> str:
        """Return the real path of an open file or directory, or refuse it outside of the roots."""
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not _is_below(real, self._real):
            raise Refusal(
                Reason.SOURCE_OUTSIDE_ROOTS,
                f"a link in the source leads out of the weights roots ({self})",
            )
        return real


@dataclass(frozen=True, slots=True)
class FileState:
    """Values of a file that change if it is replaced or written."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> FileState:
        """Return the state of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file of a checkpoint, open for reading, with its state when it was opened.

    Fields:
        is_stored: whether an object store or a peer has it.
    """

    is_stored: ClassVar[bool] = False

    name: str
    descriptor: int
    state: FileState

    def check_unchanged(self) -> None:
        """Refuse with `CheckpointChanged` if the file has changed since it was opened."""
        with os_errors(self.name):
            now = FileState.of(self.descriptor)
            links = os.fstat(self.descriptor).st_nlink
        if links == 0:
            # Deleting a file does not change the bytes of the open one.
            now = replace(now, changed_ns=self.state.changed_ns)
        if now != self.state:
            raise Refusal(
                Reason.CHECKPOINT_CHANGED, f"{self.name} changed while the worker read it"
            )

    def is_lost(self) -> bool:
        """Whether another node has deleted the file from a network file system."""
        try:
            os.fstat(self.descriptor)
        except OSError as error:
            return error.errno == errno.ESTALE
        return False

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the parts that were never written.

        A file system that does not record them reports none.
        """
        position = 0
        while position < self.state.size:
            begin = self._seek(position, os.SEEK_HOLE)
            if begin >= self.state.size:
                return
            position = self._seek(begin, os.SEEK_DATA)
            yield begin, position

    def _seek(self, position: int, whence: int) -> int:
        """Return the position of the next hole or data, or the file's length.

        It moves the descriptor's position, which no read uses.
        """
        try:
            return min(os.lseek(self.descriptor, position, whence), self.state.size)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.EINVAL):  # no data, or not supported
                return self.state.size
            raise

    def read_into(self, piece: memoryview, position: int) -> None:
        """Fill a buffer with the bytes at a position.

        Errors:
            Refusal: `CheckpointChanged` if there are fewer bytes; `SourceUnreadable`.
        """
        done = 0
        while done < len(piece):
            with os_errors(self.name):
                count = os.preadv(self.descriptor, [piece[done:]], position + done)
            if count == 0:
                raise Refusal(
                    Reason.CHECKPOINT_CHANGED, f"{self.name} shrank while the worker read it"
                )
            done += count

    def close(self) -> None:
        """Close it. No read may follow."""
        os.close(self.descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes, or refuse with `CheckpointTruncated`."""
        pieces = []
        while length > 0:
            with os_errors(self.name):
                piece = os.pread(self.descriptor, min(length, _CHUNK), offset)
            if not piece:
                raise Refusal(Reason.CHECKPOINT_TRUNCATED, f"{self.name} ends too early")
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class RemoteFile(OpenFile):
    """A file that an object store or a peer has. It has no descriptor: the kernel refuses -1."""

    is_stored: ClassVar[bool] = True

    def check_unchanged(self) -> None:
        """Each read of an object has demanded its ETag; for a peer's file the digest decides."""

    def is_lost(self) -> bool:
        """There is no descriptor that could become stale."""
        return False

    def holes(self) -> Iterator[tuple[int, int]]:
        """Stores and peers know no holes."""
        yield from ()


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A small file that was read in whole, and its state then."""

    name: str
    content: bytes
    state: FileState


class Directory(ABC):
    """The files of a checkpoint, in a directory or an object store.

    Fields:
        path: its real place.
        names: names of its entries.
        small: name → content of each small file that was read.
    """

    path: str
    names: frozenset[str]
    small: dict[str, bytes]

    @abstractmethod
    def open(self, name: str) -> OpenFile:
        """Open one file. Errors: Refusal."""

    @abstractmethod
    def state_of(self, name: str) -> FileState | None:
        """Return the state of a file, or None if it does not exist."""

    @abstractmethod
    def opened_state_of(self, name: str) -> FileState | None:
        """Return the state of a file as a read would find it, or None if it cannot be opened."""

    @abstractmethod
    def close(self) -> None:
        """Close the directory. Files opened from it stay open."""

    def read(self, name: str, *, limit: int) -> SmallFile | None:
        """Return the content of a small file with its state, or None if it does not exist."""
        if name not in self.names:
            return None
        file = self.open(name)
        try:
            if file.state.size > limit:
                raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is larger than {limit} bytes")
            content = file.read(0, file.state.size)
            file.check_unchanged()
            self.small[name] = content
            return SmallFile(name, content, file.state)
        finally:
            file.close()

    def size_and_time(self, name: str) -> tuple[int, int]:
        """Return size and modification time in ns of an entry; (-1, 0) if it cannot be opened."""
        state = self.opened_state_of(name)
        return (-1, 0) if state is None else (state.size, state.modified_ns)


class RemoteDirectory(Directory):
    """The files that an object store or a peer has named.

    Fields:
        states: name → state of each one.
    """

    states: dict[str, FileState]

    @abstractmethod
    def of_state(self, name: str, state: FileState) -> OpenFile:
        """One of the files. Nothing is read yet."""

    def open(self, name: str) -> OpenFile:
        """Return one of the files. Errors: Refusal."""
        if (state := self.states.get(name)) is None:
            raise Refusal(Reason.SOURCE_NOT_FOUND, f"{name} does not exist")
        return self.of_state(name, state)

    def state_of(self, name: str) -> FileState | None:
        """Return the state of a file, or None if it was not named."""
        return self.states.get(name)

    opened_state_of = state_of

    def close(self) -> None:
        """Nothing is open."""


class OpenDirectory(Directory):
    """The open directory of a checkpoint."""

    def __init__(self, path: str, roots: Roots | None) -> None:
        """Open a directory.

        Args:
            path: Absolute path.
            roots: The allowed roots. None for the model's own directory, which the fleet names.
        """
        self._roots = roots
        self.small: dict[str, bytes] = {}
        if roots is not None:
            roots.check_name(path)
        with os_errors("the source", path, self._may_name):
            try:
                self._descriptor = os.open(path, _READ | os.O_DIRECTORY)
            except FileNotFoundError as error:
                raise absent() from error
        self.path = path
        try:
            if roots is not None:
                self.path = roots.check_opened(self._descriptor)
            with os_errors("the source", path, self._may_name):
                self.names = frozenset(os.listdir(self._descriptor))  # noqa: PTH208 - by descriptor
            marks = (name for name in self.names if name.startswith(ASIDE_MARK))
            check_not_aside((name, self._size_of(name)) for name in marks)
        except BaseException:
            self.close()
            raise

    def open(self, name: str) -> OpenFile:
        """Open one file. Links are followed, and must end below the roots too."""
        with os_errors(name, f"{self.path}/{name}", self._may_name):
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        try:
            if self._roots is not None:
                self._roots.check_opened(descriptor)
            _check_regular(name, descriptor)
            return OpenFile(name, descriptor, FileState.of(descriptor))
        except BaseException:
            os.close(descriptor)
            raise

    def state_of(self, name: str) -> FileState | None:
        """Return the state of a file, or None if it does not exist.

        A file that cannot be opened has a state, too.
        """
        if (state := self.opened_state_of(name)) is not None:
            return state
        try:
            status = os.stat(name, dir_fd=self._descriptor)
        except OSError:
            return None
        return FileState(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)

    def opened_state_of(self, name: str) -> FileState | None:
        """Open an entry and return its state, or None if it cannot be opened.

        For seconds a network file system may answer `stat` from its cache, but not this.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        except OSError:
            return None
        try:
            return FileState.of(descriptor)
        finally:
            os.close(descriptor)

    def _size_of(self, name: str) -> int:
        """Return the size of an entry, 0 if it is gone."""
        state = self.state_of(name)
        return 0 if state is None else state.size

    def _may_name(self, real: str) -> bool:
        return self._roots is None or self._roots.contain(real)

    def close(self) -> None:
        """Close the directory. Files opened from it stay open."""
        os.close(self._descriptor)


def _normal(place: str) -> str:
    return place if is_uri(place) else os.path.normpath(place)


def _check_regular(name: str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is not a regular file")


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in directories)
