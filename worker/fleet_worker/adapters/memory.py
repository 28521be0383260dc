"""Holding a file's bytes in memory, sealed, where the engine's processes can read them.

A memory file (memfd) counts as the pod's memory, can be mapped by every process of the engine
without a copy each, and once sealed cannot change any more: what was checked is what is loaded,
whatever becomes of the file on disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# What the engine and the page cache shall keep when the machine runs low.
_RESERVE = 512 * 1024 * 1024
_STEP = 64 * 1024 * 1024
"""Memory is reserved in steps of this length: about 30 ms of the kernel's time each."""
_FULL = frozenset({errno.ENOSPC, errno.ENOMEM})


class NotEnoughMemoryError(Exception):
    """There is less memory than the bytes to be held need."""


class MemoryFile:
    """A file in memory: reserved first, then written to, then sealed.

    One thread may reserve while another writes, and a third may close it at any time: what is
    written afterwards goes nowhere.

    Fields:
        descriptor: of the file.
        size: in bytes.
    """

    def __init__(self, name: str, size: int) -> None:
        """Make an empty one; `name` is for people and may be any text."""
        # The kernel takes 249 bytes of a name.
        short = os.fsdecode(os.fsencode(name)[:200])
        self.descriptor = os.memfd_create(short, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size = size
        self._reserved = 0
        self._open = True
        self._changed = threading.Condition()

    def reserve(self, go_on: Callable[[], None]) -> None:
        """Take the memory for all bytes, before anything is written.

        Errors:
            NotEnoughMemoryError: there is not that much.
        """
        while self._reserved < self.size:
            go_on()
            step = min(_STEP, self.size - self._reserved)
            if headroom() < step:
                raise NotEnoughMemoryError
            with self._changed:
                if not self._open:
                    return
                try:
                    os.posix_fallocate(self.descriptor, self._reserved, step)
                except OSError as error:
                    if error.errno in _FULL:
                        raise NotEnoughMemoryError from error
                    raise
                self._reserved += step
                self._changed.notify_all()

    def write(self, piece: memoryview, position: int) -> None:
        """Write some bytes as soon as there is memory for them; nothing happens once it is closed."""
        done = 0
        with self._changed:
            self._changed.wait_for(
                lambda: not self._open or self._reserved >= position + len(piece)
            )
            while self._open and done < len(piece):
                done += os.pwrite(self.descriptor, piece[done:], position + done)

    def seal(self) -> None:
        """Let nobody change it any more."""
        with self._changed:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """Give the memory back: 0.2 s a GB. Safe to call again."""
        with self._changed:
            if self._open:
                self._open = False
                os.close(self.descriptor)
            self._changed.notify_all()


def reserve(files: Iterable[MemoryFile], go_on: Callable[[], None]) -> None:
    """Take the memory for all bytes of some files.

    Errors:
        NotEnoughMemoryError: there is not that much, now that it was taken.
    """
    for file in files:
        file.reserve(go_on)
    # Others reserve at the same time, and looked before either had.
    if headroom() < 0:
        raise NotEnoughMemoryError


def default_budget() -> int:
    """Bytes that staging may hold if nobody says otherwise: a quarter of the container's memory."""
    return memory_limit() // 4


def memory_limit() -> int:
    """Memory that this container may use, in bytes."""
    total = _meminfo("MemTotal")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    return min(total, limit) if limit is not None else total


def memory_left() -> int:
    """Bytes that may still be taken without pressing the engine; never negative."""
    return max(0, headroom())


def headroom() -> int:
    """Bytes that are left beyond what engine and page cache shall keep; negative: too few."""
    left = _meminfo("MemAvailable")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    used = _cgroup("memory.current", "memory.usage_in_bytes")
    if limit is not None and used is not None:
        cache = _cgroup_cache()
        left = min(left, limit - (used - cache))
    return left - _RESERVE


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
