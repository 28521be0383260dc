"""Fleets without a decision: reports on them, and renewed pauses after a defect in the reconcile."""

from __future__ import annotations

from datetime import datetime

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.fallback_plan import fallback_plan
from fleet_operator.core.idle_weights import idle_status
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.problems import Defect, kept_fleet_status, with_problems
from fleet_operator.core.staleness import with_unheard
from fleet_operator.core.steering import too_many
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.runtime.callers import BUSY_SECONDS, Callers
from fleet_operator.runtime.dispatch import Dispatcher
from fleet_operator.runtime.observer import Observer
from fleet_operator.runtime.session import FleetSession
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
        resync_seconds: float,
    ) -> None:
        self._callers = callers
        self._calls = calls
        self._observer = observer
        self._resync_seconds = resync_seconds

    async def keep(
        self, session: FleetSession, record: FleetRecord, spec: FleetSpec, now: datetime
    ) -> None:
        """Renew the pauses of a fleet, and report its problems, after a defect in the reconcile itself.

        One does not depend on the other. Raises nothing except cancellation.
        """
        try:
            await self._renew_pauses(session, record, spec)
        except Exception as error:  # noqa: BLE001 - log it; there is no further fallback
            session.defects.note(Defect(part=f"{RECONCILE} (renewal of pauses)", error=error))
        try:
            self._report(session, record, spec, now)
        except Exception as error:  # noqa: BLE001 - log it; there is no further fallback
            session.defects.note(Defect(part=f"{RECONCILE} (report)", error=error))

    def report_undecided(self, session: FleetSession, record: FleetRecord, now: datetime) -> float:
        """Write the conditions of a fleet whose spec or pods are not read yet, without calls.

        Returns: seconds to the next reconcile.
        """
        problems, statuses = session.problems.all(), session.statuses
        unreadable = record.unreadable if record.spec is None else ""
        if not (problems or unreadable):
            return BUSY_SECONDS
        weights, beyond = self._observer.looked_at(session), self._observer.beyond(session)
        statuses.forget_all_but(w.uid for w in (*weights, *beyond))
        before = statuses.fleet(record)
        made = report_undecided(
            session.key[1],
            generation=record.generation,
            unreadable=unreadable,
            unreadable_reason=record.unreadable_reason,
            status=before,
            weights=weights,
            problems=problems,
            staleness=record.staleness,
            now=now,
        )
        statuses.take_fleet(record.uid, before, made.fleet)
        for each in weights:
            statuses.take_weights(each, made.weights[each.uid])
        for each in beyond:
            statuses.take_weights(each, idle_status(each, too_many(session.key[1]), now))
        statuses.begin_due()
        turn_seconds = self._observer.turn_in_seconds(session.key)
        return min(self._resync_seconds, statuses.held_back_seconds(), turn_seconds)

    async def _renew_pauses(
        self, session: FleetSession, record: FleetRecord, spec: FleetSpec
    ) -> None:
        caller = self._callers.known(session, spec)
        if caller is None:
            return
        await self._callers.ask(caller, external=spec.is_external)
        observed = FleetObserved(
            name=session.key[1],
            namespace=session.key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
            status=record.status,
            problems=session.problems.all(),
            workers=self._observer.workers(session.key),
        )
        calls = fallback_plan(observed).step.actions
        views = {w.pod.uid: w.pod for w in observed.workers}
        worker_calls = [c for c in calls if not isinstance(c, Quarantine)]
        await self._calls.act(caller, worker_calls, views)
        await self._callers.poll(caller, often=views)

    @staticmethod
    def _report(session: FleetSession, record: FleetRecord, spec: FleetSpec, now: datetime) -> None:
        before, stored = session.statuses.fleet(record), record.status.conditions
        problems, generation = session.problems.all(), record.generation
        status = kept_fleet_status(before)
        status = with_problems(status, stored, problems, generation=generation, now=now)
        status = with_unheard(status, stored, spec.staleness, generation=generation, now=now)
        session.statuses.take_fleet(record.uid, before, status)
        session.statuses.begin_due()
