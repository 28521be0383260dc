"""Holding a file's bytes in memory, sealed, where the engine's processes can read them.

A memory file (memfd) is filled by the kernel without passing through Python, counts as the pod's
memory, can be mapped by every process of the engine without a copy each, and once sealed cannot
change any more: what was checked is what is loaded, whatever becomes of the file on disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from fleet_worker.adapters.files import OpenFile, os_errors
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

_CHUNK = 64 * 1024 * 1024
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# What the engine and the page cache shall keep when the machine runs low.
_RESERVE = 512 * 1024 * 1024


def hold(file: OpenFile, go_on: Callable[[], None]) -> int:
    """Copy a file into memory and return the descriptor of the sealed copy.

    Args:
        file: An open regular file.
        go_on: Called between pieces of 64 MiB; raises to give up.
    """
    # Its name is for people; the kernel takes 249 bytes of one.
    name = os.fsdecode(os.fsencode(file.name)[:200])
    memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _copy(file, memory, go_on)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def _copy(file: OpenFile, memory: int, go_on: Callable[[], None]) -> None:
    position, size = 0, file.state.size
    while position < size:
        go_on()
        with os_errors(file.name):
            copied = os.sendfile(memory, file.descriptor, position, min(_CHUNK, size - position))
        if copied == 0:
            raise Refusal(Reason.CHECKPOINT_CHANGED, f"{file.name} shrank while it was read")
        position += copied


def warm(file: OpenFile, go_on: Callable[[], None]) -> None:
    """Bring a file into the page cache, for checkpoints that do not fit into the budget."""
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    position = 0
    scratch = bytearray(min(_CHUNK, max(1, file.state.size)))
    while position < file.state.size:
        go_on()
        with os_errors(file.name):
            count = os.preadv(file.descriptor, [scratch], position)
        if count == 0:
            raise Refusal(Reason.CHECKPOINT_CHANGED, f"{file.name} shrank while it was read")
        position += count


def default_budget() -> int:
    """Bytes that staging may hold if nobody says otherwise: a quarter of the container's memory."""
    return memory_limit() // 4


def memory_limit() -> int:
    """Memory that this container may use, in bytes."""
    total = _meminfo("MemTotal")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    return min(total, limit) if limit is not None else total


def memory_left() -> int:
    """Bytes that may still be taken without pressing the engine."""
    left = _meminfo("MemAvailable")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    used = _cgroup("memory.current", "memory.usage_in_bytes")
    if limit is not None and used is not None:
        cache = _cgroup_cache()
        left = min(left, limit - (used - cache))
    return max(0, left - _RESERVE)


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise KeyError(key)


def _cgroup(*names: str) -> int | None:
    """A value of this container's memory cgroup (version 2 or 1), or None where there is none."""
    for folder, name in zip(("/sys/fs/cgroup", "/sys/fs/cgroup/memory"), names, strict=True):
        try:
            text = Path(folder, name).read_text().strip()
        except OSError:
            continue
        # Version 1 says "no limit" with a huge number.
        return int(text) if text.isdigit() and int(text) < 1 << 60 else None
    return None


def _cgroup_cache() -> int:
    """File pages that the kernel gives back on demand."""
    try:
        text = Path("/sys/fs/cgroup/memory.stat").read_text()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in text.splitlines())
    return int(values.get("inactive_file", 0)) + int(values.get("active_file", 0))
