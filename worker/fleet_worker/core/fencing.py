"""Who may drive: epochs fence off late calls, a pause lease keeps two drivers apart.

Times are seconds on the worker's monotonic clock, handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Epoch, PauseMode, PauseState, Reason


def newest(seen: Epoch | None, epoch: Epoch) -> Epoch:
    """The newer of the two epochs.

    Errors:
        Refusal: `StaleEpoch`, if the call's epoch is the older one.
    """
    if seen is not None and epoch < seen:
        raise Refusal(
            Reason.STALE_EPOCH,
            f"the call's epoch {epoch.term}.{epoch.sequence} is older than"
            f" {seen.term}.{seen.sequence}, which this worker has obeyed",
        )
    return epoch


@dataclass(frozen=True, slots=True)
class Lease:
    """A pause and how long it may last without a renewal.

    Fields:
        drain_timed_out: A `wait` ran into its drain deadline and became a `keep`.
        cache_kept: Keys and values of older weights stay, because the driver wants it so.
    """

    mode: PauseMode
    holder: str
    since: float
    expires: float
    drain_timed_out: bool = False
    cache_kept: bool = False

    def remaining(self, now: float) -> float:
        """Seconds until the lease expires, never negative."""
        return max(0.0, self.expires - now)

    def has_expired(self, now: float) -> bool:
        """Whether nobody renewed the lease in time."""
        return now >= self.expires

    def renewed(self, now: float, lease_seconds: float) -> Lease:
        """The same pause with a new deadline; never an earlier one, as renewals may cross."""
        return replace(self, expires=max(self.expires, now + lease_seconds))

    def as_state(self, now: float) -> PauseState:
        """The lease as the state document shows it."""
        return PauseState(
            mode=self.mode,
            holder=self.holder,
            paused_seconds=now - self.since,
            lease_remaining_seconds=self.remaining(now),
            drain_timed_out=self.drain_timed_out,
            cache_kept=self.cache_kept,
        )


def check_holder(lease: Lease | None, holder: str, now: float) -> None:
    """Let only the holder of a running lease drive.

    Errors:
        Refusal: `HeldByAnother`, with the holder and the time left.
    """
    if lease is None or lease.holder == holder or lease.has_expired(now):
        return
    left = lease.remaining(now)
    raise Refusal(
        Reason.HELD_BY_ANOTHER,
        f"{lease.holder} holds the pause of this worker for another {left:.1f} s",
        retry_after_seconds=left,
    )
