"""The sealed bytes of a staged version, mapped in a process of the engine until nothing needs them.

To map bytes, register them with the device and unmap them takes the kernel long: the last alone 0.07 s per
GB. A thread does it while requests run. The worker says which files it wants (`want`), as often as it
likes. The call starts the work and returns at once. The process lets go of all files that the latest call
does not name.

A load maps what is not held by then, and leaves the unmapping to the call after it.
"""

from __future__ import annotations

import logging
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fleet_worker.checkpoint.mapping import mapped

_LOG = logging.getLogger(__name__)
_MADV_POPULATE_READ = 22
"""Source: madvise(2), Linux 5.14."""
_STEP = 1024 * 1024
"""Bytes to map at a time. Python keeps its lock meanwhile, about 1 ms with small pages."""
_SMAPS = Path("/proc/self/smaps")

Key = tuple[int, int]
"""Device and inode of an open file. No other file has them while it is mapped."""


class RegistrationError(Exception):
    """The device's runtime does not register some memory. The text is the reason."""


class Runtime(Protocol):
    """A device, as far as it concerns the memory of the host. One thread makes these calls."""

    @property
    def has_buffers(self) -> bool:
        """Whether copies of bytes that are not registered go through pinned memory."""

    def open(self) -> None:
        """Take the pinned memory. Safe to call again."""

    def register(self, content: mmap.mmap) -> int:
        """Let the device read sealed bytes where they are; return their address.

        Errors:
            RegistrationError: The device cannot.
        """

    def unregister(self, address: int) -> None:
        """End that. No copy from these bytes may be under way."""


@dataclass(slots=True, eq=False)
class _File:
    """One mapped file.

    Fields:
        address: of the registered bytes; None if they are not registered.
        why_not: why they are not registered; empty while that is not known.
        huge_bytes: bytes that are mapped in huge pages.
    """

    key: Key
    content: mmap.mmap
    size: int
    wanted: threading.Event = field(default_factory=threading.Event)
    address: int | None = None
    why_not: str = ""
    huge_bytes: int = 0


_Work = queue.Queue[Callable[[], None]]


class Held:
    """The mapped files of this process."""

    def __init__(self, runtime: Runtime | None) -> None:
        """Hold nothing yet. `runtime`: of the device; None for CPUs, which read the bytes where they are."""
        self._runtime = runtime
        self._files: dict[Key, _File] = {}
        self._work = _Work()
        # A daemon: the end of the process does not wait for the kernel to map or register memory.
        threading.Thread(target=_do, args=(self._work,), name="rlfleet-hold", daemon=True).start()
        self._stuck: list[mmap.mmap] = []
        """Mappings that the device still reads, and that nothing needs."""
        self._work.put(self._open)  # for bytes that come from files, too

    def want(self, links: Sequence[str]) -> None:
        """Hold these files and let go of all others. Starts the work, and does not wait for it.

        Args:
            links: Paths of descriptors of sealed memory.

        Errors:
            OSError: A path leads nowhere.
            ValueError: The bytes are not sealed.
        """
        prepared = {key for key, file in self._files.items() if file.wanted.is_set()}
        wanted = {self._hold(link) for link in links}
        if wanted - prepared:
            self._work.put(self._look_for_huge_pages)
        for key in [key for key in self._files if key not in wanted]:
            file = self._files.pop(key)
            file.wanted.clear()
            self._work.put(partial(self._let_go, file))

    def state(self) -> dict[str, Any]:
        """Return what is held.

        Returns:
            `{done, bytes, registered, buffers, huge, why_not}`. `done`: no work is left. `registered`: bytes
            that the device reads where they are. `buffers`: the rest goes through pinned memory.
            `huge`: bytes in huge pages. `why_not`: why some are not registered.
        """
        done = not self._work.unfinished_tasks  # what follows is then the result of all work
        files = list(self._files.values())
        return {
            "done": done,
            "bytes": sum(file.size for file in files),
            "registered": sum(file.size for file in files if file.address is not None),
            "buffers": self._runtime is not None and self._runtime.has_buffers,
            "huge": sum(file.huge_bytes for file in files),
            "why_not": next((file.why_not for file in files if file.why_not), ""),
        }

    def content_of(self, descriptor: int, size: int) -> mmap.mmap:
        """Return the bytes of an open file of sealed memory, for a load.

        Errors:
            ValueError: The bytes are not sealed.
        """
        key = key_of(descriptor)
        if key not in self._files:
            self._files[key] = _File(key, mapped(descriptor, size), size)
        return self._files[key].content

    def registered(self) -> tuple[tuple[int, int], ...]:
        """Return the address ranges that the device can read: begin and end of each."""
        found = [(f.address, f.size) for f in self._files.values()]
        return tuple((begin, begin + size) for begin, size in found if begin is not None)

    def do(self, work: Callable[[], None]) -> None:
        """Do some work in the thread; `state` tells when no work is left. It never raises."""
        self._work.put(work)

    def _hold(self, link: str) -> Key:
        with ExitStack() as closed:
            descriptor = opened(link, closed)
            key = key_of(descriptor)
            self.content_of(descriptor, os.fstat(descriptor).st_size)
        file = self._files[key]
        if not file.wanted.is_set():
            file.wanted.set()
            self._work.put(partial(self._prepare, file))
        return key

    def _open(self) -> None:
        """In the thread: take the pinned memory. `_prepare` tries again, and reports why."""
        with suppress(Exception):
            if self._runtime is not None:
                self._runtime.open()

    def _prepare(self, file: _File) -> None:
        """In the thread: map the pages of a file and register them."""
        try:
            _populate(file.content, file.size, file.wanted)
            if self._runtime is None:
                file.why_not = "the engine runs on CPUs"
                return
            self._runtime.open()
            if file.wanted.is_set():
                file.address = self._runtime.register(file.content)
        except RegistrationError as error:
            file.why_not = str(error)
        except Exception as error:  # noqa: BLE001 - a load goes well without it
            file.why_not = f"{type(error).__name__}: {error}"[:200]

    def _look_for_huge_pages(self) -> None:
        """In the thread, once for all files: the kernel walks all pages of the process for the answer."""
        found = _huge_bytes()
        for file in list(self._files.values()):
            file.huge_bytes = found.get(file.key[1], 0)

    def _let_go(self, file: _File) -> None:
        """In the thread, after `_prepare` of the same file: undo it.

        A device that does not give the pages back keeps them, and reads them at these addresses, whatever is
        there by then. So the mapping stays. To unmap it would free nothing.
        """
        try:
            if file.address is not None and self._runtime is not None:
                self._runtime.unregister(file.address)
        except Exception:  # noqa: BLE001 - the next file may be let go
            _LOG.exception("the device did not give memory of a staged version back")
            self._stuck.append(file.content)
            return
        with suppress(BufferError):  # the mapping goes when the last tensor over it does
            file.content.close()


def _do(work: _Work) -> None:
    """The thread. None of its work raises."""
    while True:
        _do_next(work)
        work.task_done()


def _do_next(work: _Work) -> None:
    work.get()()


def opened(link: str, until: ExitStack) -> int:
    """Open a path of a descriptor (`/proc/PID/fd/N`), and close it with a stack.

    Errors:
        OSError: The path leads nowhere.
    """
    # The number may be that of a pipe by now, which must not hang the engine.
    descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    until.callback(os.close, descriptor)
    return descriptor


def key_of(descriptor: int) -> Key:
    """Return what tells an open file from all others, while it is open."""
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


def _populate(content: mmap.mmap, size: int, wanted: threading.Event) -> None:
    """Map all pages now, so that a load does not wait for each of them."""
    with suppress(OSError):  # an older kernel maps them later
        content.madvise(mmap.MADV_HUGEPAGE)
    with suppress(OSError):
        for begin in range(0, size, _STEP):
            if not wanted.is_set():
                return
            content.madvise(_MADV_POPULATE_READ, begin, min(_STEP, size - begin))
            time.sleep(0)  # another thread may have Python's lock


def _huge_bytes() -> dict[int, int]:
    """Return how many bytes of each mapped file are in huge pages, by its inode. Source: smaps in proc(5)."""
    found, inode = dict[int, int](), 0
    with suppress(OSError), _SMAPS.open() as lines:
        for line in lines:
            if not line[0].isupper():  # a mapping begins, at an address
                inode = int(line.split(maxsplit=5)[4])
            elif line.startswith(("ShmemPmdMapped:", "FilePmdMapped:")):
                found[inode] = found.get(inode, 0) + int(line.split()[1]) * 1024
    return found
