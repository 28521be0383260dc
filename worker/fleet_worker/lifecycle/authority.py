"""Epochs and pause leases: refuse late calls, and calls of a second driver.

Times are seconds on the worker's monotonic clock, passed in by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Epoch, PauseMode, PauseState, Reason


def newest(seen: Epoch | None, epoch: Epoch) -> Epoch:
    """Return the newer of the two epochs.

    Errors:
        Refusal: `StaleEpoch`, if the call's epoch is the older one.
    """
    if seen is not None and epoch < seen:
        raise Refusal(
            Reason.STALE_EPOCH,
            f"the call's epoch {epoch.term}.{epoch.sequence} is older than"
            f" {seen.term}.{seen.sequence}, which this worker has accepted",
        )
    return epoch


@dataclass(frozen=True, slots=True)
class PauseLease:
    """A pause, and the time until which it lasts without a renewal.

    Fields:
        drain_timed_out: Whether a `wait` reached its drain timeout and became a `keep`.
        cache_kept: Whether the driver keeps keys and values of older weights.
    """

    mode: PauseMode
    holder: str
    since: float
    expires: float
    drain_timed_out: bool = False
    cache_kept: bool = False

    def remaining(self, now: float) -> float:
        """Return the seconds until the lease expires, never negative."""
        return max(0.0, self.expires - now)

    def has_expired(self, now: float) -> bool:
        """Return whether no renewal came in time."""
        return now >= self.expires

    def renewed(self, now: float, lease_seconds: float) -> PauseLease:
        """Return the same pause with a new deadline, never an earlier one: renewals may cross."""
        return replace(self, expires=max(self.expires, now + lease_seconds))

    def as_state(self, now: float) -> PauseState:
        """Return the lease for the worker's state."""
        return PauseState(
            mode=self.mode,
            holder=self.holder,
            paused_seconds=now - self.since,
            lease_remaining_seconds=self.remaining(now),
            drain_timed_out=self.drain_timed_out,
            cache_kept=self.cache_kept,
        )


def check_holder(lease: PauseLease | None, holder: str, now: float) -> None:
    """Refuse a caller that does not hold the running lease.

    Errors:
        Refusal: `HeldByAnother`, with the holder and the time left.
    """
    if lease is None or lease.holder == holder or lease.has_expired(now):
        return
    left = lease.remaining(now)
    raise Refusal(
        Reason.HELD_BY_ANOTHER,
        f"{lease.holder} holds the pause of this worker; its lease ends in {left:.1f} s",
        retry_after_seconds=left,
    )
