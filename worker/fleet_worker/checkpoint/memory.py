"""Keep a file's bytes in sealed memory, where the engine's processes can read them.

A memory file (memfd) counts as the pod's memory. Every process of the engine can map it without a
copy. Once sealed it cannot change, so the engine loads the bytes that were checked, even if the file
on disk changes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# Memory that stays free for the engine and the page cache.
_RESERVE = 512 * 1024 * 1024
_STEP = 64 * 1024 * 1024
"""Bytes to write until the next look at the memory that is left. The reserve has room for several files."""
_SHARED_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_HUGE_STEP = 2 * 1024 * 1024
"""One huge page at a time, about 2 ms."""
_MADV_POPULATE_WRITE = 23
"""Source: madvise(2), Linux 5.14."""
_FULL = frozenset({errno.ENOSPC, errno.ENOMEM})


class NotEnoughMemoryError(Exception):
    """There is not enough memory for the bytes to keep."""


class MemoryFile:
    """A file in memory: first written from begin to end, then sealed.

    One thread may write while another closes the file. Later writes have no effect.

    Fields:
        descriptor: of the file.
        size: in bytes.
        note_written: called with the number of bytes that were written so far.
    """

    def __init__(self, name: str, size: int, *, descriptor: int | None = None) -> None:
        """Create an empty file, or own an open one; `name` is any text, for debugging."""
        if descriptor is None:
            # The kernel allows 249 bytes.
            short = os.fsdecode(os.fsencode(name)[:200])
            descriptor = os.memfd_create(short, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.descriptor = descriptor
        self.size = size
        self.note_written: Callable[[int], None] = lambda _: None
        self._checked = 0
        self._open = True
        self._lock = threading.Lock()

    @classmethod
    def received(cls, name: str, size: int, descriptor: int) -> MemoryFile:
        """Take over sealed memory that another process has filled. It owns the descriptor from now on.

        Errors:
            ValueError: it is not sealed, or has another size; the descriptor is closed.
        """
        file = cls(name, size, descriptor=descriptor)
        if not is_sealed(descriptor) or os.fstat(descriptor).st_size != size:
            file.close()
            raise ValueError("a memory file of another process is not sealed, or has another size")
        return file

    def write(self, piece: memoryview, position: int) -> None:
        """Write the next bytes. Does nothing after `close`.

        Errors:
            NotEnoughMemoryError: there is not enough memory.
        """
        done = 0
        with self._lock:
            while self._open and done < len(piece):
                if position + done >= self._checked:
                    if headroom() < _STEP:
                        raise NotEnoughMemoryError
                    begin, self._checked = position + done, position + done + _STEP
                    _ask_for_huge_pages(self.descriptor, begin, min(_STEP, self.size - begin))
                end = self._checked - position
                try:
                    done += os.pwrite(self.descriptor, piece[done:end], position + done)
                except OSError as error:
                    if error.errno in _FULL:
                        raise NotEnoughMemoryError from error
                    raise
            if self._open:
                self.note_written(position + done)

    def seal(self) -> None:
        """Make the file immutable."""
        with self._lock:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """Free the memory, which takes 0.2 s per GB. Safe to call again."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.descriptor)


def _ask_for_huge_pages(descriptor: int, begin: int, size: int) -> None:
    """Take the memory of a part of a file in huge pages, if the kernel gives them on request.

    They save most of the time to map, register and unmap it. The kernel gives them to writes through a
    mapping only, so the memory is taken through one. The caller takes the rest as usual.

    Source: Documentation/admin-guide/mm/transhuge.rst, Linux 6.12.
    """
    try:
        if "[advise]" not in _SHARED_HUGE_PAGES.read_text():
            return  # "always" needs no question, and "never" has no other answer
        os.ftruncate(descriptor, begin + size)
        # Unmapped at once, because a file that is mapped for writing cannot be sealed.
        with mmap.mmap(descriptor, size, offset=begin) as content:
            content.madvise(mmap.MADV_HUGEPAGE)
            for part in range(0, size, _HUGE_STEP):
                content.madvise(_MADV_POPULATE_WRITE, part, min(_HUGE_STEP, size - part))
                time.sleep(0)  # Python keeps its lock during the call
    except OSError:
        return


def is_sealed(descriptor: int) -> bool:
    """Whether an open file is sealed memory, whose bytes can never change."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False


def default_budget() -> int:
    """Return the default staging budget in bytes: a quarter of the container's memory."""
    return memory_limit() // 4


def memory_limit() -> int:
    """Return the memory that this container may use, in bytes."""
    total = _meminfo("MemTotal")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    return min(total, limit) if limit is not None else total


def memory_left() -> int:
    """Return the bytes that staging may still take without hurting the engine, never negative."""
    return max(0, headroom())


def headroom() -> int:
    """Return the free bytes minus those kept for engine and page cache. May be negative."""
    left = _meminfo("MemAvailable")
    limit = _cgroup("memory.max", "memory.limit_in_bytes")
    used = _cgroup("memory.current", "memory.usage_in_bytes")
    if limit is not None and used is not None:
        cache = _cgroup_cache()
        left = min(left, limit - (used - cache))
    return left - _RESERVE


def oom_kills() -> int:
    """Return how many processes of this container the kernel has killed for want of memory."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            lines = Path(file).read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split(maxsplit=1) for line in lines if " " in line)
        return int(values.get("oom_kill", 0))
    return 0


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise KeyError(key)


def _cgroup(*names: str) -> int | None:
    """Return a value of this container's memory cgroup (version 2 or 1), or None without a limit."""
    for folder, name in zip(("/sys/fs/cgroup", "/sys/fs/cgroup/memory"), names, strict=True):
        try:
            text = Path(folder, name).read_text().strip()
        except OSError:
            continue
        # In version 1 a huge number means "no limit".
        return int(text) if text.isdigit() and int(text) < 1 << 60 else None
    return None


def _cgroup_cache() -> int:
    """Return the bytes of file pages that the kernel can free on demand."""
    for file, of_all in (("memory.stat", ""), ("memory/memory.stat", "total_")):
        try:
            lines = Path("/sys/fs/cgroup", file).read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split(maxsplit=1) for line in lines)
        return sum(int(values.get(f"{of_all}{kind}_file", 0)) for kind in ("inactive", "active"))
    return 0
