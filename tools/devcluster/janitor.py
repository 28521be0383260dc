"""Removes what a cluster leaves: its processes, control groups and folder.

Used by the keeper at the end of a cluster, and by every command for clusters whose keeper was
killed: their folder's lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from devcluster import cgroups
from devcluster.errors import DevclusterError
from devcluster.paths import clusters_folder
from devcluster.waiting import wait_until

PATIENCE_SECONDS = 30.0
_LOCK = "lock"
_GROUPS = "groups"
_GONE = ".gone-"


def new_folder(run: Path) -> int:
    """Make a cluster's folder, locked from its first moment.

    Returns:
        The descriptor that holds the lock; to be inherited by the keeper.

    Errors:
        DevclusterError: a cluster of this id runs already.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".new-{run.name}-", dir=run.parent))
    # Under its name only once it is locked: a sweep takes a free lock for a dead cluster.
    lock = os.open(fresh / "new-lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (fresh / "new-lock").rename(fresh / _LOCK)
    try:
        fresh.rename(run)
    except OSError as error:
        os.close(lock)
        shutil.rmtree(fresh)
        raise DevclusterError(
            f"cluster {run.name} runs already", remedy=f"end it with `down --id {run.name}`"
        ) from error
    return lock


def is_kept(run: Path) -> bool:
    """Whether a keeper holds the folder's lock."""
    try:
        lock = os.open(run / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def running_clusters() -> list[str]:
    """The ids of the clusters that are up."""
    folder = clusters_folder()
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(run.name for run in found if run.name[0] != "." and is_kept(run))


def remember_groups(run: Path, groups: Sequence[Path]) -> None:
    """Record the control groups for the cleanup."""
    (run / _GROUPS).write_text("".join(f"{group}\n" for group in groups))


def claim(run: Path) -> Path | None:
    """Take a cluster's folder out of its place, so that only the caller cleans up after it.

    From here on the id is free again: the remains have other names.

    Returns:
        The folder's new path; None if another process was first.
    """
    gone = run.parent / f"{_GONE}{run.name}-{secrets.token_hex(3)}"
    try:
        run.rename(gone)
    except FileNotFoundError:
        return None
    return gone


def clean_once(gone: Path) -> bool:
    """Try to remove everything of a claimed folder; False to be tried again.

    Processes take a moment to end, and control groups cannot be removed before.
    """
    try:
        groups = tuple(Path(line) for line in (gone / _GROUPS).read_text().splitlines())
    except FileNotFoundError:
        groups = ()
    # Only this cluster starts processes in these groups.
    for process in cgroups.processes(groups):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if not cgroups.remove(groups):
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return not gone.exists()


def sweep() -> None:
    """Remove what is left of clusters whose keeper was killed.

    Errors:
        DevclusterError: something cannot be removed.
    """
    if not clusters_folder().is_dir():
        return
    for run in clusters_folder().iterdir():
        gone: Path | None = run
        if not run.name.startswith(_GONE):  # else a process was killed while it cleaned up
            if not (run / _LOCK).exists() or is_kept(run):
                continue
            gone = claim(run)
        if gone is None:
            continue
        try:
            wait_until(partial(clean_once, gone), PATIENCE_SECONDS, f"{gone} to be removable")
        except TimeoutError as error:
            raise DevclusterError(str(error), remedy="find the processes that use it") from error
