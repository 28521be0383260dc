"""A store with a limited rate: it shows the cost of files that are not cached.

A local disk of a virtual machine is often as fast as memory; the shared file systems that trainers
publish to are not. Where the kernel lets us, the servers' reads are limited (cgroup blkio).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

BYTES_PER_SECOND = 300_000_000
_CONTROLLER = Path("/sys/fs/cgroup/blkio")


@contextlib.contextmanager
def limited(pid: int, directory: Path, bytes_per_second: int = BYTES_PER_SECOND) -> Iterator[bool]:
    """Limit the reads of a process and its children from the device of a directory.

    Yields whether that could be done.
    """
    group = _CONTROLLER / f"bench-worker-{os.getpid()}"
    device = directory.stat().st_dev
    rate = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
    pids = [pid, *_children(pid)]
    try:
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(rate)
        for each in pids:
            (group / "cgroup.procs").write_text(str(each))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        for each in pids:
            (_CONTROLLER / "cgroup.procs").write_text(str(each))
        group.rmdir()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listing.read_text().split():
            found += [int(child), *_children(int(child))]
    return found
