"""A version's directory, which appears whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rlfleet.checkpoints import make_folder, make_readable, require_no_files
from rlfleet.errors import NotWritten

_REMEDIES = {
    errno.ENOSPC: "free some space: delete versions that no fleet needs",
    errno.EDQUOT: "the quota is full: delete versions that no fleet needs",
    errno.EACCES: "give the trainer's user the right to write there",
    errno.EROFS: "mount the volume with the right to write",
}


@contextmanager
def new_directory(target: Path, mode: int | None) -> Iterator[Path]:
    """A directory to write, which has the name of the target only when it is complete.

    Until then its name begins with a dot, and it is deleted if an error comes. So an interrupted write leaves
    nothing that a worker takes for a version.

    Args:
        target: The version's directory. It must not exist, or be empty.
        mode: Rights that are added to what was written; None adds none.

    Errors: FileExistsError, NotWritten.
    """
    require_no_files(target)
    folder = target.with_name(f".{target.name}.writing-{secrets.token_hex(4)}")
    try:
        make_folder(target.parent, mode=mode)
        folder.mkdir()
        yield folder
        if mode is not None:
            make_readable(folder, mode=mode)
        _sync(folder)
        _rename(folder, target)
        with suppress(OSError):  # the version is there, and whole
            _sync(target.parent)
    except OSError as error:
        if isinstance(error, (FileExistsError, NotWritten)):
            raise
        remedy = _REMEDIES.get(error.errno or 0, "repair the volume")
        raise NotWritten(
            f"{target} is not written: {error.strerror or error}. The version does not exist; {remedy}, "
            "and publish again"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file whose bytes are on the volume afterwards."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, content: bytes) -> None:
    """Write a whole file."""
    with new_file(path) as file:
        file.write(content)


def copy(files: Iterable[Path], folder: Path) -> None:
    """Copy files under their names."""
    for file in files:
        write(folder / file.name, file.read_bytes())


def size_of(folder: Path) -> int:
    """Bytes of the files in a directory."""
    return sum(path.stat().st_size for path in folder.iterdir())


def _rename(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise FileExistsError(
                f"{target} was made meanwhile by another writer; let one trainer write the versions of a "
                "run, each into a directory of its own"
            ) from error
        raise


def _sync(folder: Path) -> None:
    """Some file systems cannot do this for directories, and need it for none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
