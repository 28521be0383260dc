"""Whether an operator leads, by its Lease: pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from rlfleet.ports import Json

LATE_AFTER_DURATIONS = 2
"""After this number of its durations without a renewal of its Lease, a leader is gone."""
_DURATION_SECONDS = 15


def problem_of(lease: Json, now: datetime) -> str:
    """Why no process leads; empty if a leader renews the Lease. Source: Kubernetes coordination/v1."""
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return "no process is the leader"
    age = now - datetime.fromisoformat(renewed)
    duration = timedelta(seconds=spec.get("leaseDurationSeconds") or _DURATION_SECONDS)
    if age > LATE_AFTER_DURATIONS * duration:
        return f"the leader {holder} has not renewed its Lease for {age.total_seconds():.0f} s"
    return ""
