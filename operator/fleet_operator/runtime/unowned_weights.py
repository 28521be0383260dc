"""WeightVersions that name a fleet that does not exist, and how long this leader has known them.

Objects that are applied together arrive in any order, so a fleet may come shortly after its
WeightVersion. Memory only. A Stalled one stays Stalled under a new leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fleet_operator.core.idle_weights import idle_status
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.steering import FLEET_GRACE_SECONDS, missing_fleet, too_many
from fleet_operator.core.unreadable import unread_status
from fleet_operator.core.weights_status import awaiting_status, is_stalled_for
from fleet_operator.runtime.pod_informer import FleetKey
from rlfleet_resources.weights_status import WeightsStatus


class UnownedWeights:
    """When those that name one fleet were first seen, by uid. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(
        self,
        key: FleetKey,
        weights: Sequence[WeightsView | UnreadWeights],
        seconds: float,
        *,
        beyond: Sequence[WeightsView | UnreadWeights] = (),
        now: datetime,
    ) -> tuple[Mapping[str, WeightsStatus], float | None]:
        """The statuses of these WeightVersions now.

        Args:
            key: Namespace and name of the fleet that they name.
            weights: Those that the fleet would look at, with their last status.
            seconds: The monotonic clock.
            beyond: Others that get a status now.
            now: For conditions.

        Returns: uid → status, and the seconds after which to update again, if that is needed.
        """
        self._since = since = {o.uid: self._since.get(o.uid, seconds) for o in weights}
        refusal = missing_fleet(key)
        made = {w.uid: idle_status(w, too_many(key[1]), now) for w in beyond}
        waits: list[float] = []
        for each in weights:
            if isinstance(each, UnreadWeights) and not each.fleet:
                made[each.uid] = unread_status(each, now)  # not even the name of its fleet is known
                continue
            left_seconds = since[each.uid] + FLEET_GRACE_SECONDS - seconds
            if left_seconds <= 0 or is_stalled_for(each, refusal[0]):
                made[each.uid] = idle_status(each, refusal, now)
            else:
                made[each.uid] = awaiting_status(each, *refusal, now=now)
                waits.append(left_seconds)
        return made, min(waits, default=None)
