"""Leaves fleets to other releases of the operator, and reports them.

Only the driving operator writes the status of a fleet. There is one exception: while this process cannot learn for
minutes whether the other operator lives, it writes that into the conditions, once for each generation. An
operator that lives writes its own status over it.
"""

from __future__ import annotations

import logging
from datetime import datetime

from fleet_operator.core.another_operator import unknown_driver
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.errors import Conflict, FleetError
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.other_operators import OtherOperators, left_to
from fleet_operator.runtime.session import Driver, FleetSession, Sessions
from fleet_operator.runtime.store import FleetRecord, Store
from rlfleet_resources import names
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import WeightsStatus

logger = logging.getLogger(__name__)


class ForeignFleets:
    """The fleets in the watched namespaces that other operators drive."""

    def __init__(self, others: OtherOperators, store: Store, sessions: Sessions) -> None:
        self._others = others
        self._store = store
        self._sessions = sessions

    @property
    def own(self) -> str:
        """The Lease of this process, as `namespace/name`."""
        return self._others.own

    async def leave(self, session: FleetSession, record: FleetRecord, now: datetime) -> bool:
        """Report a fleet that another operator drives. Returns: whether one does."""
        driver = await self._others.driver(session.key[0], record.status.operator)
        if driver is None:
            session.driver, session.reported = None, {}
            return False
        before = session.driver
        if before is None:
            # The next status of this process begins with the one that the other operator has written.
            self._sessions.forget(session.key)
            session = self._sessions.of(session.key, record.uid)
        session.driver = driver
        if before is None or before.operator != driver.operator:
            event = left_to(driver.operator, self.own, session.key[0])
            session.statuses.report(record.uid, event)
        if driver.unknown:
            await self._report_unknown(session, record, driver, now)
        else:
            session.reported = {}
        return True

    async def _report_unknown(
        self, session: FleetSession, record: FleetRecord, driver: Driver, now: datetime
    ) -> None:
        namespace, name = key = session.key
        weights: list[WeightsView | UnreadWeights] = [*self._store.weights_of(key)]
        weights += self._store.unread_of(key)
        problem = unknown_driver(
            own=self.own,
            other=driver.operator,
            lease=f"{names.heartbeat_name(driver.operator)} in {namespace}",
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
            staleness=None,  # the other operator may well be heard
            now=now,
        )
        before, reported = session.reported, dict[str, int]()
        session.reported = reported
        if before.get(record.uid) == record.generation or await _write(
            session, names.FLEET_KIND, name, record.version, uid=record.uid, status=made.fleet
        ):
            reported[record.uid] = record.generation
        for each in weights:
            of = (names.WEIGHTS_KIND, each.name, self._store.version_of(each))
            if before.get(each.uid) == each.generation or await _write(
                session, *of, uid=each.uid, status=made.weights[each.uid]
            ):
                reported[each.uid] = each.generation


async def _write(
    session: FleetSession,
    kind: str,
    name: str,
    version: str,
    *,
    uid: str,
    status: FleetStatus | WeightsStatus,
) -> bool:
    """Write a status over a resourceVersion. Returns: whether that was done."""
    try:
        await session.statuses.put(kind, name, uid, status, version)
    except Conflict:  # an operator that lives has written since then
        return False
    except FleetError as error:
        fields = fleet_fields("unreported", session.key)
        logger.warning("status of %s not written: %s", name, error, extra=fields)
        return False
    return True
