"""Measures how long this leader has watched each rollout, on a monotonic clock.

Memory only: a new leader begins at 0, so that time without a leader counts against no worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fleet_operator.core.observed import Watched
from rlfleet_resources.weights_status import WeightsStatus

GAP_SECONDS = 30.0
"""A longer gap between two reconciles does not count: all pauses have expired in it."""


@dataclass
class RolloutTimer:
    """One rollout as this leader has seen it. Times are seconds of the given clock."""

    phase: object
    attempt: object
    began_at: float
    updated_at: float
    term: int | None
    phase_seconds: float = 0.0
    saw_it_begin: bool = False


class RolloutTimers:
    """Rollouts of one fleet by uid of their WeightVersion. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, RolloutTimer] = {}

    def update(self, uid: str, status: WeightsStatus, now: float, *, term: int | None) -> Watched:
        """Update a rollout's times and return them. `status`: the last one, which the next decision uses.

        `term`: that of the fleet's calls; None while none can be sent. The time since the last update counts if
        it is the same: between two terms, workers have refused calls.
        """
        seen = self._note(uid, status, now, term, begins=False)
        passed_seconds = now - seen.updated_at
        if term is not None and term == seen.term and passed_seconds <= GAP_SECONDS:
            seen.phase_seconds += passed_seconds
        seen.updated_at, seen.term = now, term
        return Watched(
            phase_seconds=seen.phase_seconds,
            attempt_seconds=now - seen.began_at,
            saw_it_begin=seen.saw_it_begin,
        )

    def decided(self, uid: str, status: WeightsStatus, now: float, *, term: int | None) -> None:
        """Note a new status that this leader has decided."""
        self._note(uid, status, now, term, begins=True)

    def seen(self, uid: str) -> RolloutTimer | None:
        """The times of a rollout at the last update; None before the first one."""
        return self._seen.get(uid)

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Forget WeightVersions that are gone."""
        self._seen = {u: s for u, s in self._seen.items() if u in uids}

    def _note(
        self, uid: str, status: WeightsStatus, now: float, term: int | None, *, begins: bool
    ) -> RolloutTimer:
        attempt = (status.desired_version, status.retried, status.started_at)
        phase = (attempt, status.phase, status.phase_started_at)
        seen = self._seen.get(uid)
        if seen is None or seen.attempt != attempt:
            seen = RolloutTimer(phase, attempt, now, now, term, saw_it_begin=begins)
            self._seen[uid] = seen
        elif seen.phase != phase:
            seen.phase, seen.phase_seconds = phase, 0.0
            seen.updated_at, seen.term = now, term
        return seen
