"""WeightVersions whose fleet does not exist, and for how long this leader has seen them so.

Objects that are applied together arrive in any order: a fleet may come a moment after the
WeightVersion that names it. Memory only; what was Stalled already stays so under a new leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.refusals import FLEET_GRACE_SECONDS, orphan_refusal
from fleet_operator.core.weights_status import awaiting_status, is_given_up, refused_status
from fleet_operator.runtime.informer import FleetKey


class Orphans:
    """By fleet and uid of the WeightVersion. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[FleetKey, dict[str, float]] = {}

    def look(
        self,
        key: FleetKey,
        orphans: Sequence[WeightsView | UnreadWeights],
        seconds: float,
        *,
        now: datetime,
    ) -> tuple[Mapping[str, WeightsStatus], float | None]:
        """What is to be said of them now.

        Args:
            key: Namespace and name of the fleet that they name.
            orphans: All that name it, with their last status.
            seconds: The monotonic clock.
            now: For conditions.

        Returns: uid → status, and seconds until it must be looked at again, if it must.
        """
        before = self._since.get(key, {})
        since = {o.uid: before.get(o.uid, seconds) for o in orphans}
        self._since[key] = since
        refusal = orphan_refusal(key)
        made: dict[str, WeightsStatus] = {}
        waits: list[float] = []
        for orphan in orphans:
            left_seconds = since[orphan.uid] + FLEET_GRACE_SECONDS - seconds
            if left_seconds <= 0 or is_given_up(orphan, refusal[0]):
                made[orphan.uid] = refused_status(orphan, *refusal, now=now)
            else:
                made[orphan.uid] = awaiting_status(orphan, *refusal, now=now)
                waits.append(left_seconds)
        if not orphans:
            del self._since[key]
        return made, min(waits, default=None)

    def forget(self, key: FleetKey) -> None:
        """The fleet exists."""
        self._since.pop(key, None)
