"""Leaves fleets to other releases of the operator, and reports them.

Only the driving operator writes the status of a fleet. There is one exception: while this process cannot learn for
minutes whether the other operator lives, it writes that into the conditions, once for each generation. An
operator that lives writes its own status over it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from fleet_operator.api import names
from fleet_operator.api.status import Status
from fleet_operator.core.another_operator import unknown_driver
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.errors import Conflict, FleetError
from fleet_operator.runtime.heartbeats import lease_name
from fleet_operator.runtime.kube_statuses import KubeStatuses
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.other_operators import Driver, OtherOperators, left_to
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import FleetRecord, Store

logger = logging.getLogger(__name__)


class ForeignFleets:
    """The fleets in the watched namespaces that other operators drive.

    Args:
        others: The other operators.
        store: Fleets and WeightVersions.
        statuses: Posts Events.
        objects: Writes statuses.
        metrics: Shows the number of these fleets.
    """

    def __init__(
        self,
        others: OtherOperators,
        *,
        store: Store,
        statuses: StatusWriter,
        objects: KubeStatuses,
        metrics: Metrics,
    ) -> None:
        self._others = others
        self._store = store
        self._statuses = statuses
        self._objects = objects
        self._metrics = metrics
        self._left: dict[FleetKey, Driver] = {}
        self._reported: dict[FleetKey, dict[str, int]] = {}
        """Generations that a status reports about, by fleet and uid."""

    @property
    def own(self) -> str:
        """The Lease of this process, as `namespace/name`."""
        return self._others.own

    def __contains__(self, key: FleetKey) -> bool:
        return key in self._left

    def driven(self) -> Iterable[FleetKey]:
        """The fleets that this operator drives."""
        return [key for key in self._store.fleet_keys() if key not in self._left]

    async def leave(self, key: FleetKey, record: FleetRecord, now: datetime) -> bool:
        """Report a fleet that another operator drives. Returns: whether one does."""
        driver = await self._others.driver(key[0], record.status.operator)
        if driver is None:
            self.forget(key)
            return False
        before = self._left.get(key)
        self._left[key] = driver
        self._show()
        if before is None or before.operator != driver.operator:
            event = left_to(driver.operator, self.own, key[0])
            self._statuses.report(key, record.uid, event)
        if driver.unknown:
            await self._report_unknown(key, record, driver, now)
        else:
            self._reported.pop(key, None)
        return True

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone, or that no other operator drives."""
        self._left.pop(key, None)
        self._reported.pop(key, None)
        self._show()

    def _show(self) -> None:
        self._metrics.left_to_others.set(len(self._left))

    async def _report_unknown(
        self, key: FleetKey, record: FleetRecord, driver: Driver, now: datetime
    ) -> None:
        namespace, name = key
        weights: list[WeightsView | UnreadWeights] = [*self._store.weights_of(key)]
        weights += self._store.unread_of(key)
        problem = unknown_driver(
            own=self.own,
            other=driver.operator,
            lease=f"{lease_name(driver.operator)} in {namespace}",
            why=driver.unknown,
            fleet=name,
        )
        made = report_undecided(
            name,
            generation=record.generation,
            unreadable="",
            status=record.status,
            weights=weights,
            problems=[problem],
            now=now,
        )
        before, reported = self._reported.get(key, {}), dict[str, int]()
        self._reported[key] = reported
        fleet = (names.FLEET_PLURAL, name, record.version)
        if before.get(record.uid) == record.generation or await self._write(
            key, *fleet, uid=record.uid, status=made.fleet
        ):
            reported[record.uid] = record.generation
        for each in weights:
            of = (names.WEIGHTS_PLURAL, each.name, self._store.version_of(each))
            if before.get(each.uid) == each.generation or await self._write(
                key, *of, uid=each.uid, status=made.weights[each.uid]
            ):
                reported[each.uid] = each.generation

    async def _write(
        self, key: FleetKey, plural: str, name: str, version: str, *, uid: str, status: Status
    ) -> bool:
        """Write a status over a resourceVersion. Returns: whether that was done."""
        try:
            await self._objects.write(
                plural,
                namespace=key[0],
                name=name,
                uid=uid,
                status=status.to_json(),
                version=version,
            )
        except Conflict:  # an operator that lives has written since then
            return False
        except FleetError as error:
            fields = fleet_fields("unreported", key)
            logger.warning("status of %s not written: %s", name, error, extra=fields)
            return False
        return True
