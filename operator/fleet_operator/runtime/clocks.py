"""The clock that leadership is counted on."""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """Seconds since the host was booted, with the time in which it was suspended.

    A virtual machine that is paused and a host that sleeps stop CLOCK_MONOTONIC, which the event
    loop counts on: to such a process its Lease would be as fresh as before. Where the system has
    no CLOCK_BOOTTIME it is the monotonic clock. Source: clock_gettime(2).
    """
    return time.clock_gettime(_CLOCK)


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
