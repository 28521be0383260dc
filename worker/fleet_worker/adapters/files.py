"""Opening the files of a checkpoint, once, and never by name again.

Everything after the opening goes through the descriptors: what was checked to lie below the roots
is what is read, and a path that is swapped in between (a link turned elsewhere, a directory
renamed) cannot make the worker read something else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang the worker
_CHUNK = 1024 * 1024
_ABSENT_RETRY_SECONDS = 5.0
"""Until a directory that does not exist is worth another look: it costs one question to the store."""


class Roots:
    """The only directories that weights may come from."""

    def __init__(self, directories: Sequence[str | os.PathLike[str]]) -> None:
        given = [os.path.normpath(directory) for directory in directories]
        self._real = tuple(os.path.realpath(directory) for directory in given)
        self._named = tuple(dict.fromkeys([*given, *self._real]))

    def __str__(self) -> str:
        return ", ".join(self._named)

    def check_name(self, path: str) -> None:
        """Refuse a path that does not even name something below a root.

        Before anything is opened: whether a file outside of the roots exists is nobody's business.
        """
        if "\0" in path or not path.startswith("/"):
            raise Refusal(Reason.SOURCE_OUTSIDE_ROOTS, "the source must be an absolute path")
        if not _is_below(os.path.normpath(path), self._named):
            raise Refusal(
                Reason.SOURCE_OUTSIDE_ROOTS, f"the source is not below a weights root ({self})"
            )

    def root_of(self, path: str) -> str:
        """The root that a path is below by its name; the path itself if it is below none."""
        below = [root for root in self._named if _is_below(os.path.normpath(path), (root,))]
        return max(below, key=len, default=path)

    def hold(self, path: str) -> bool:
        """Whether a real path is one of the roots, or below one."""
        return _is_below(path, self._real)

    def check_opened(self, descriptor: int) -> str:
        """The real path of an open file or directory, if it is below a root."""
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not _is_below(real, self._real):
            raise Refusal(
                Reason.SOURCE_OUTSIDE_ROOTS,
                f"the source leads out of the weights roots ({self}) by a link",
            )
        return real


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells whether a file is still the one that was opened, and unchanged."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> FileState:
        """The state of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file of a checkpoint, open for reading, and its state when it was opened."""

    name: str
    descriptor: int
    state: FileState

    def check_unchanged(self) -> None:
        """Refuse with `CheckpointChanged` if the file was written to since it was opened."""
        now = FileState.of(self.descriptor)
        if os.fstat(self.descriptor).st_nlink == 0:
            # Deleted meanwhile, which changes no byte of what is open here.
            now = replace(now, changed_ns=self.state.changed_ns)
        if now != self.state:
            raise Refusal(Reason.CHECKPOINT_CHANGED, f"{self.name} was changed while it was read")

    def holes(self) -> Iterator[tuple[int, int]]:
        """Begin and end of the parts that were never written, as far as the file system knows.

        A file system that keeps no account of them says that there are none.
        """
        position = 0
        while position < self.state.size:
            begin = self._seek(position, os.SEEK_HOLE)
            if begin >= self.state.size:
                return
            position = self._seek(begin, os.SEEK_DATA)
            yield begin, position

    def _seek(self, position: int, whence: int) -> int:
        """The next hole or the next data; the file's length if there is none.

        Nothing else goes by the descriptor's position: all reads name theirs.
        """
        try:
            return min(os.lseek(self.descriptor, position, whence), self.state.size)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.EINVAL):  # no data, or not supported
                return self.state.size
            raise

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or `CheckpointTruncated`."""
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


class OpenDirectory:
    """A checkpoint's directory, open.

    Fields:
        path: its real path.
        names: what it holds.
    """

    def __init__(self, path: str, roots: Roots | None) -> None:
        """Open a directory.

        Args:
            path: Absolute path.
            roots: Where it must be; None for the model's own directory, which the fleet's
                owner named.
        """
        self._roots = roots
        if roots is not None:
            roots.check_name(path)
        with os_errors("the source"):
            try:
                self._descriptor = os.open(path, _READ | os.O_DIRECTORY)
            except FileNotFoundError as error:
                raise Refusal(
                    Reason.SOURCE_ABSENT,
                    "the source does not exist",
                    retry_after_seconds=_ABSENT_RETRY_SECONDS,
                ) from error
        self.path = path
        try:
            if roots is not None:
                self.path = roots.check_opened(self._descriptor)
            with os_errors("the source"):
                self.names = frozenset(os.listdir(self._descriptor))  # noqa: PTH208 - by descriptor
        except BaseException:
            self.close()
            raise

    def open(self, name: str) -> OpenFile:
        """Open one file; links are followed, and must end below the roots as well."""
        with os_errors(name):
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        try:
            if self._roots is not None:
                self._roots.check_opened(descriptor)
            _check_regular(name, descriptor)
            return OpenFile(name, descriptor, FileState.of(descriptor))
        except BaseException:
            os.close(descriptor)
            raise

    def read(self, name: str, *, limit: int) -> bytes | None:
        """The content of a small file, or None if there is none."""
        if name not in self.names:
            return None
        file = self.open(name)
        try:
            if file.state.size > limit:
                raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is larger than {limit} bytes")
            return file.read(0, file.state.size)
        finally:
            os.close(file.descriptor)

    def state_of(self, name: str) -> FileState | None:
        """The state of a file, or None if there is none of this name."""
        try:
            status = os.stat(name, dir_fd=self._descriptor)
        except OSError:
            return None
        return FileState(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)

    def opened_state_of(self, name: str) -> FileState | None:
        """The state of an entry, or None if it cannot be opened.

        By opening it: a network file system may answer `state_of` from memory for seconds, but not
        this.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        except OSError:
            return None
        try:
            return FileState.of(descriptor)
        finally:
            os.close(descriptor)

    def size_and_time(self, name: str) -> tuple[int, int]:
        """Size and modification time in ns of an entry; (-1, 0) if it cannot be opened."""
        state = self.opened_state_of(name)
        return (-1, 0) if state is None else (state.size, state.modified_ns)

    def close(self) -> None:
        """Close the directory; files opened from it stay open."""
        os.close(self._descriptor)


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn errors of the operating system into refusals; the path is not repeated to the caller."""
    try:
        yield
    except FileNotFoundError as error:
        raise Refusal(Reason.SOURCE_NOT_FOUND, f"{what} does not exist") from error
    except NotADirectoryError as error:
        raise Refusal(Reason.SOURCE_NOT_FOUND, f"{what} is not a directory") from error
    except PermissionError as error:
        raise Refusal(
            Reason.SOURCE_UNREADABLE,
            f"{what} may not be read by the worker (uid {os.getuid()}); check its mode and owner",
        ) from error
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "unknown error")
        raise Refusal(Reason.SOURCE_UNREADABLE, f"{what} cannot be read: {code}") from error


def _check_regular(name: str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is not a regular file")


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in directories)
