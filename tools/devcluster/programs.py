"""Finds the programs of a cluster, and makes those that are missing.

A group of programs is complete when its folder exists: it is made under another name and renamed
last, so an interrupted build leaves nothing that looks finished. One lock lets builders wait for
each other. Programs of the machine in a fitting version (runc, nft) are used instead of built ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster import distribution, gobuild, machine
from devcluster.errors import DevclusterError
from devcluster.parts import API_PARTS, NODE_PARTS, OLDEST, RUNC, Part, kubernetes_choice
from devcluster.paths import programs_folder
from devcluster.profiles import Profile
from devcluster.progress import Progress

_UNFINISHED = ".unfinished-"
# cgo asks pkg-config for libseccomp's flags; this answers with the folder that was unpacked.
_PKG_CONFIG = """\
#!/bin/sh
for word in "$@"; do
  case "$word" in
  --cflags) echo "{cflags}" ;;
  --libs) echo "{libs} -lseccomp" ;;
  esac
done
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """Folders of programs. The machine's own come last."""

    folders: tuple[Path, ...]

    def path(self, name: str) -> Path:
        """The program of this name.

        Errors:
            DevclusterError: neither the folders nor the machine have it.
        """
        for folder in self.folders:
            if (folder / name).exists():
                return folder / name
        found = machine.find_program(name)
        if found is None:
            raise DevclusterError(f"the program {name} is missing", remedy="install it")
        return found

    def search_path(self) -> str:
        """The value of PATH that finds our programs before the machine's."""
        own = os.environ.get("PATH", "")
        return ":".join([*map(str, self.folders), own, "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


@dataclass(frozen=True, slots=True)
class _Group:
    """Programs that are made together: their place, and how to fill an empty folder with them."""

    name: str
    folder: Path
    make: Callable[[Path, Progress, int], None]
    """Takes the folder, where to report, and the descriptor of the build lock."""


def missing(profile: Profile) -> tuple[str, ...]:
    """The names of what would have to be made."""
    return tuple(group.name for group in _groups(profile) if not group.folder.is_dir())


def ensure(profile: Profile, progress: Progress | None = None) -> Programs:
    """The programs of a profile; makes what is missing, which takes minutes the first time.

    Errors:
        BuildError: a part cannot be built or fetched.
    """
    return _ensured(_groups(profile), progress)


def ensure_part(part: Part, progress: Progress | None = None) -> Programs:
    """The programs of a part that belongs to no profile; builds it if it is missing.

    Errors:
        BuildError: it cannot be built.
    """
    return _ensured((_built(part),), progress)


def _ensured(groups: tuple[_Group, ...], progress: Progress | None) -> Programs:
    if not all(group.folder.is_dir() for group in groups):
        progress = progress or Progress()
        programs_folder().mkdir(parents=True, exist_ok=True)
        with _build_lock(progress) as lock:
            _make_missing(groups, progress, lock)
    folders = [group.folder for group in groups]
    return Programs(tuple(f / "bin" if (f / "bin").is_dir() else f for f in folders))


def _groups(profile: Profile) -> tuple[_Group, ...]:
    """Everything that must be made on this machine, in order."""
    if profile == "api":
        # A cluster uses the first folder that has a program.
        first = (OLDEST,) if kubernetes_choice() == "oldest" else ()
        return tuple(_built(part) for part in (*first, *API_PARTS))
    groups = [_built(part) for part in NODE_PARTS]
    if machine.fitting_runc() is None:
        groups.append(_Group(RUNC.name, RUNC.folder(), _make_runc))
    if machine.fitting_nft() is None:
        groups.append(_Group("nftables", distribution.fetched_folder("nftables"), _fetch_nft))
    return tuple(groups)


def _make_missing(groups: tuple[_Group, ...], progress: Progress, lock: int) -> None:
    for leftover in programs_folder().glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)
    todo = [group for group in groups if not group.folder.is_dir()]
    if not todo:
        return  # another builder made them while this one waited for the lock
    progress.say(f"one-time build of {', '.join(group.name for group in todo)}")
    progress.say(f"  into {programs_folder()}; from nothing it takes 4 to 8 minutes on 2 cores")
    for group in todo:
        unfinished = _unfinished(group.name)
        progress.begin(f"making {group.name}")
        group.make(unfinished, progress, lock)
        unfinished.rename(group.folder)
        progress.done(f"made {group.name}")
    gobuild.remove_go_caches()


def _unfinished(name: str) -> Path:
    folder = programs_folder() / f"{_UNFINISHED}{name}"
    folder.mkdir()
    return folder


def _built(part: Part) -> _Group:
    def make(target: Path, progress: Progress, lock: int) -> None:
        gobuild.build(part, target, progress, keep_open=lock)

    return _Group(part.name, part.folder(), make)


def _make_runc(target: Path, progress: Progress, lock: int) -> None:
    """Build runc, with libseccomp from the machine or else from its distribution."""
    scratch = _unfinished("libseccomp-dev")
    cflags = libs = ""
    if not machine.has_seccomp_headers():
        distribution.fetch("libseccomp-dev", scratch)
        library = next(scratch.rglob("libseccomp.a")).parent
        cflags, libs = f"-I{scratch}/usr/include", f"-L{library}"
    pkg_config = scratch / "pkg-config"
    pkg_config.write_text(_PKG_CONFIG.format(cflags=cflags, libs=libs))
    pkg_config.chmod(0o755)
    flags = {"PKG_CONFIG": str(pkg_config)}
    gobuild.build(RUNC, target, progress, keep_open=lock, extra_environment=flags)
    shutil.rmtree(scratch)


def _fetch_nft(target: Path, progress: Progress, lock: int) -> None:
    del progress, lock  # it takes seconds, and apt-get ends with its reader
    distribution.fetch("nftables", target, program="usr/sbin/nft")


@contextmanager
def _build_lock(progress: Progress) -> Iterator[int]:
    """Hold the lock that lets one builder work at a time; the kernel frees it if we die."""
    lock = os.open(programs_folder() / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another build is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)
