"""The few system calls that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

CLONE_NEWNET = 0x4000_0000

MS_BIND = 4096
MS_REC = 16384
MS_SHARED = 1 << 20

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system, or with `flags` do what else that system call does.

    `data` are the file system's own options.

    Errors:
        OSError: with both paths in its text.
    """
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {source} on {target}")


def enter_network(namespace: int) -> None:
    """Move the calling thread into the network namespace that the descriptor refers to."""
    _check(_libc.setns(namespace, CLONE_NEWNET), "setns")


def die_with_parent() -> None:
    """Have the kernel kill the calling process when the *thread* that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can be waited for."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
