"""The clock that measures leadership."""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """Seconds since the host was booted, including the time in which it was suspended.

    The event loop's CLOCK_MONOTONIC stops while a virtual machine is paused or a host sleeps. By that
    clock, an expired Lease would still look fresh. The fallback without CLOCK_BOOTTIME is the monotonic
    clock. Source: clock_gettime(2).
    """
    return time.clock_gettime(_CLOCK)


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
