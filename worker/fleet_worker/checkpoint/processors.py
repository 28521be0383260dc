"""The processors that this container may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_V2 = "/sys/fs/cgroup/cpu.max"
_V1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def processors() -> int:
    """Return how many processors this process may use: those of its affinity, at most its CPU limit."""
    usable = len(os.sched_getaffinity(0))
    limit = _limit()
    return usable if limit is None else max(1, min(usable, math.ceil(limit)))


def _limit() -> float | None:
    """Return the CPU limit of this container (control groups of version 2 or 1), or None without one."""
    for files in ((_V2,), _V1):
        try:
            quota, period = " ".join(Path(file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return int(quota) / int(period) if quota.isdigit() and int(period) > 0 else None
    return None
