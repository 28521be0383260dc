"""The directories that a trainer writes: which run they belong to, and that workers can read them."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from rlfleet.arguments import LABEL

READABLE = 0o444
"""Rights that workers need. Their user, 1000 by default, is often not the trainer's."""
_FILE = ".rlfleet-run"
_LONGEST_NAME = 40


def run_of(directory: str | Path, *, mode: int | None = READABLE) -> str:
    """The training run whose versions are written below a directory.

    The first call names the run after the directory and the time, and keeps the name there, in
    `.rlfleet-run`. So a job which resumes in the directory continues its run. A job that starts over writes
    to another directory, or deletes this one first, and gets another run.

    Args:
        directory: A directory of one run. It is created if it does not exist.
        mode: As for `make_readable`, for what this creates; None for no more rights.

    Errors: ValueError if `.rlfleet-run` has no name of a run; OSError.

    >>> run_of(directory) == run_of(directory)
    True
    """
    folder = Path(directory)
    make_folder(folder, mode=mode)
    file = folder / _FILE
    if not file.exists():
        _name(file, mode)
    found = file.read_text().strip()
    if LABEL.fullmatch(found) is None:
        raise ValueError(
            f"{file} has no name of a run; write one into it, or delete it if no version below "
            f"{folder} was published"
        )
    return found


def make_readable(directory: str | Path, *, mode: int = READABLE) -> None:
    """Give workers the rights to read a directory and all below it.

    Trainers that run as root, or with a strict umask, write files for their own user only: so does
    safetensors since 0.8. Links, and names that begin with a dot, stay as they are.

    Args:
        directory: A directory of one version.
        mode: Rights that are added to those of each file. Users that may read a directory may also enter it.

    Errors: OSError, such as PermissionError for files of another user.

    >>> make_readable(directory)
    """
    root = Path(directory).resolve()
    _permit(root, mode)
    for path in _below(root):
        _permit(path, mode)


def make_folder(folder: Path, *, mode: int | None) -> None:
    """Create a directory, with its parents. `mode`: as for `run_of`. Errors: OSError."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new if mode is not None else []:
        _permit(path, mode or 0)


def require_no_files(directory: str | Path) -> None:
    """Errors: FileExistsError."""
    found = next(Path(directory).glob("[!.]*"), None)  # not what a file system leaves there
    if found is not None:
        raise FileExistsError(
            f"{directory} has files of an earlier version already, such as {found.name}, which workers "
            "may serve; a training that starts over, or goes back, needs another directory. Delete this "
            "one only if its version was never published"
        )


def _name(file: Path, mode: int | None) -> None:
    """Create the file with the name of a run, unless another process has. It is never seen in part."""
    name = _named_after(file.parent.resolve().name)
    new = file.with_name(f"{file.name}-{secrets.token_hex(4)}")
    new.write_text(name)
    if mode is not None:
        _permit(new, mode)
    try:
        os.link(new, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links, such as that of a bucket
        with suppress(FileExistsError), file.open("x") as own:
            own.write(name)
            file.chmod(stat.S_IMODE(new.stat().st_mode))
    finally:
        new.unlink()


def _named_after(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST_NAME].strip("._-") or "run"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in folders)
        yield from (Path(folder, name) for name in files if not name.startswith("."))


def _permit(path: Path, mode: int) -> None:
    now = path.lstat().st_mode
    if stat.S_ISLNK(now):
        return
    wanted = mode | ((mode & READABLE) >> 2 if stat.S_ISDIR(now) else 0)
    if now & wanted != wanted:
        path.chmod(stat.S_IMODE(now) | wanted)
