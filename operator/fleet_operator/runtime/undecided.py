"""Fleets without a decision: reports on them, and renewed pauses after a defect in the reconcile."""

from __future__ import annotations

from datetime import datetime

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.fallback_plan import fallback_plan
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.problems import Defect, kept_fleet_status, with_problems
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.runtime.callers import BUSY_SECONDS, Callers
from fleet_operator.runtime.defect_log import DefectLog
from fleet_operator.runtime.dispatch import Dispatcher
from fleet_operator.runtime.observer import Observer
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.status_parts import StatusParts
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import FleetRecord

RECONCILE = "the reconcile"


class UndecidedFleets:
    """Acts on fleets that no decision is made for."""

    def __init__(
        self,
        *,
        callers: Callers,
        calls: Dispatcher,
        observer: Observer,
        statuses: StatusWriter,
        parts: StatusParts,
        problems: Problems,
        defects: DefectLog,
        resync_seconds: float,
    ) -> None:
        self._callers = callers
        self._calls = calls
        self._observer = observer
        self._statuses = statuses
        self._parts = parts
        self._problems = problems
        self._defects = defects
        self._resync_seconds = resync_seconds

    async def keep(
        self, key: FleetKey, record: FleetRecord, spec: FleetSpec, now: datetime
    ) -> None:
        """Renew the pauses of a fleet, and report its problems, after a defect in the reconcile itself.

        One does not depend on the other. Raises nothing except cancellation.
        """
        try:
            await self._renew_pauses(key, record, spec)
        except Exception as error:  # noqa: BLE001 - log it; there is no further fallback
            self._defects.note(key, Defect(part=f"{RECONCILE} (renewal of pauses)", error=error))
        try:
            self._report(key, record, now)
        except Exception as error:  # noqa: BLE001 - log it; there is no further fallback
            self._defects.note(key, Defect(part=f"{RECONCILE} (report)", error=error))

    def report_undecided(self, key: FleetKey, record: FleetRecord, now: datetime) -> float:
        """Write the conditions of a fleet whose spec or pods are not read yet, without calls.

        Returns: seconds to the next reconcile.
        """
        problems = self._problems.of(key)
        unreadable = record.unreadable if record.spec is None else ""
        if not (problems or unreadable):
            return BUSY_SECONDS
        weights = self._observer.looked_at(key)
        self._statuses.forget_all_but(key, {record.uid, *(w.uid for w in weights)})
        before = self._statuses.fleet(record)
        made = report_undecided(
            key[1],
            generation=record.generation,
            unreadable=unreadable,
            unreadable_reason=record.unreadable_reason,
            status=before,
            weights=weights,
            problems=problems,
            now=now,
        )
        parts = self._parts.take_fleet(key, record.uid, before, made.fleet)
        parts |= self._parts.take_weights(key, weights, made.weights)
        self._parts.write(key, parts)
        return min(self._resync_seconds, self._statuses.held_back_seconds(key))

    async def _renew_pauses(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> None:
        caller = self._callers.known(key, record, spec)
        if caller is None:
            return
        await self._callers.ask(caller, external=spec.is_external)
        observed = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
            status=record.status,
            problems=self._problems.of(key),
            workers=self._observer.workers(key),
        )
        calls = fallback_plan(observed).step.actions
        views = {w.pod.uid: w.pod for w in observed.workers}
        worker_calls = [c for c in calls if not isinstance(c, Quarantine)]
        await self._calls.act(caller, worker_calls, views)
        await self._callers.poll(caller, often=views)

    def _report(self, key: FleetKey, record: FleetRecord, now: datetime) -> None:
        before = self._statuses.fleet(record)
        status = with_problems(
            kept_fleet_status(before),
            record.status.conditions,
            self._problems.of(key),
            generation=record.generation,
            now=now,
        )
        parts = self._parts.take_fleet(key, record.uid, before, status)
        self._parts.write(key, parts)
