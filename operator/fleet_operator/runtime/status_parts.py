"""Passes new statuses of a fleet and its WeightVersions on, and begins their writes when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from fleet_operator.api import names
from fleet_operator.api.fleet_status import FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.runtime.background_writes import BackgroundWrites
from fleet_operator.runtime.dispatch import ANSWER_WAIT_SECONDS, Sent
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import Problems, status_part
from fleet_operator.runtime.status_writer import StatusWriter


class StatusParts:
    """The statuses of fleets, as parts of the background writes."""

    def __init__(
        self, statuses: StatusWriter, writes: BackgroundWrites, problems: Problems
    ) -> None:
        self._statuses = statuses
        self._writes = writes
        self._problems = problems
        self._unwritten_since: dict[FleetKey, float] = {}

    def take_fleet(
        self, key: FleetKey, uid: str, before: FleetStatus, status: FleetStatus
    ) -> dict[str, str]:
        """Take over a fleet's new status. Returns: the uid by part.

        `before`: the status from which it was computed.
        """
        self._statuses.take_fleet(key, uid, before, status)
        return {status_part(names.FLEET_KIND, key[1]): uid}

    def take_weights(
        self,
        key: FleetKey,
        weights: Iterable[WeightsView | UnreadWeights],
        made: Mapping[str, WeightsStatus],
    ) -> dict[str, str]:
        """Take over the new statuses of WeightVersions. Returns: uids by part. `made`: statuses by uid."""
        return {
            status_part(names.WEIGHTS_KIND, each.name): self._statuses.take_weights(
                key, each, made[each.uid]
            )
            for each in weights
        }

    def write(self, key: FleetKey, parts: Mapping[str, str], *, awaited: str = "") -> None:
        """Begin the writes that are due or have failed.

        Args:
            key: The fleet.
            parts: Uids by part.
            awaited: The part that calls wait for, if there is one. The other parts wait for it, too, unless
                its last write failed: on a busy API server they would delay it.
        """
        if awaited and not self._problems.has(key, awaited):
            parts = {awaited: parts[awaited]}
        due = {
            part: partial(self._statuses.write, uid)
            for part, uid in parts.items()
            if self._statuses.is_due(uid) or self._problems.has(key, part)
        }
        self._writes.begin(key, due, awaited={awaited})

    def are_left_to_the_next(self, key: FleetKey, sent: Sent) -> bool:
        """Whether the next reconcile writes the statuses. It follows at once, with the effect of the
        calls. So a rollout of a small model costs no write per barrier, and the pin of a version does not
        wait for an earlier write.
        """
        now = asyncio.get_running_loop().time()
        if sent is Sent.ENDED:
            since = self._unwritten_since.setdefault(key, now)
            if now - since <= ANSWER_WAIT_SECONDS:
                return True
        self._unwritten_since.pop(key, None)
        return False

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._unwritten_since.pop(key, None)
