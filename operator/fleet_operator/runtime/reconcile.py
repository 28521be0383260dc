"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: a reconcile does not depend on what changed. `core` makes all decisions. All state is
in the cluster or in the workers, and can be read again. `FleetSession` has what this process
remembers about a fleet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import coroutine

from fleet_operator.core.decision import Decision, deciding
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.core.problems import Defect
from fleet_operator.runtime.background_writes import Write
from fleet_operator.runtime.callers import BUSY_SECONDS, TOKEN, Callers
from fleet_operator.runtime.dispatch import (
    ANSWER_WAIT_SECONDS,
    Caller,
    Dispatcher,
    Sent,
    fold_seconds,
)
from fleet_operator.runtime.foreign_fleets import ForeignFleets
from fleet_operator.runtime.heartbeats import HEARTBEAT_SECONDS
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.observer import Observer
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.problems import PODS
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.session import FleetSession, Sessions
from fleet_operator.runtime.status_writer import NEVER
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.templates import TEMPLATE
from fleet_operator.runtime.traces import RolloutTraces
from fleet_operator.runtime.undecided import RECONCILE, UndecidedFleets
from fleet_operator.runtime.worker_cache import WorkerCache
from rlfleet_resources import names

logger = logging.getLogger(__name__)

QUICKLY_SECONDS = 0.0


class Reconciler:
    """Brings fleets to what their objects ask for, one call of `reconcile` at a time per fleet."""

    def __init__(
        self,
        *,
        store: Store,
        sessions: Sessions,
        pods: PodInformer,
        worker_cache: WorkerCache,
        calls: Dispatcher,
        routers: RouterObjects,
        foreign: ForeignFleets,
        metrics: Metrics,
        default_image: str,
        resync_seconds: float,
        requeue: Callable[[FleetKey, float], None],
        traces: RolloutTraces | None = None,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._pods = pods
        self._calls = calls
        self._foreign = foreign
        self._metrics = metrics
        self._default_image = default_image
        self._resync_seconds = resync_seconds
        self._requeue = requeue
        self._traces = traces
        self._callers = Callers(
            calls=calls, pods=pods, worker_cache=worker_cache, resync_seconds=resync_seconds
        )
        self._observer = Observer(
            foreign.own, store=store, pods=pods, worker_cache=worker_cache, routers=routers
        )
        self._undecided = UndecidedFleets(
            callers=self._callers,
            calls=calls,
            observer=self._observer,
            resync_seconds=resync_seconds,
        )

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet, and schedule the next reconcile. Raises nothing except cancellation."""
        record = self._store.fleet(key)
        session = self._sessions.of(key, record.uid if record is not None else "")
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(session, record)
        except Exception as error:  # noqa: BLE001 - a defect in one fleet must not stop the others
            session = self._sessions.of(key, session.uid)  # the driver may have changed
            session.defects.note(Defect(part=RECONCILE, error=error))
            session.problems.note(RECONCILE, error)
            after_seconds = BUSY_SECONDS
            if record is not None and record.spec is not None and session.driver is None:
                await self._undecided.keep(session, record, record.spec, datetime.now(UTC))
        else:
            session.problems.note(RECONCILE, None)
        if after_seconds is not None:
            self._requeue(key, after_seconds)

    async def _reconcile(self, session: FleetSession, record: FleetRecord | None) -> float | None:
        key = session.key
        if record is None:
            return self._report_orphans(session)
        if await self._foreign.leave(session, record, datetime.now(UTC)):
            self._metrics.forget_fleet(key)
            return min(self._resync_seconds, HEARTBEAT_SECONDS)
        if record.spec is None or not self._pods.is_synced(key[0]):
            return self._undecided.report_undecided(session, record, datetime.now(UTC))
        caller = await self._callers.read(session, record, record.spec)
        if caller is None and session.writes.is_running(TOKEN) and not session.problems.has(TOKEN):
            return (
                None  # without a token nothing is known; the end of its read requests a reconcile
            )
        now = datetime.now(UTC)
        observed = self._observer.observe(session, record, record.spec)
        observed = replace(observed, has_token=caller is not None)
        observed = await _with_template(session, observed)
        # Other fleets get the event loop between two steps of it.
        decided = coroutine(deciding)(observed, default_image=self._default_image, now=now)
        decision = await decided
        session.defects.note_all(decision.defects)
        rollout = decision.rollout
        self._observer.note_decided(session, decision.weights)
        self._metrics.show_silent(key, observed)
        if self._traces is not None:
            weights = observed.all_weights
            session.trace = self._traces.update(
                key, session.trace, weights, decision.weights, now=now
            )
        if caller is not None:
            wanted = decision.wanted and decision.wanted.model_copy(
                update={"term": session.epochs.last.term}
            )
            caller = replace(caller, trace=session.trace, wanted=wanted)
            await self._callers.tell(caller)
        calling = asyncio.create_task(self._call(session, caller, observed, decision))
        # After the calls, and without waiting: a slow API server must not prolong a pause.
        session.writes.begin(_writes(session, observed, decision))
        self._take_statuses(session, observed, decision)
        sent = await calling
        if not _leaves_statuses(session, sent):
            session.statuses.begin_due(awaited=decision.waits_for_pin)
        changing = observed.workers.where(lambda f: f.busy or not f.pod.ready)
        polled_often = changing if decision.at_rest else observed.workers
        rest_seconds = min(self._resync_seconds, observed.spec.hearing_seconds)
        if caller is not None:
            await self._callers.poll(
                caller,
                often={w.pod.uid for w in polled_often},
                at_most_seconds=observed.spec.hearing_seconds,
            )
        busy = bool(changing) or not decision.at_rest
        refused = session.problems.has(PODS)
        logger.log(
            logging.INFO if sent or (decision.pod_actions and not refused) else logging.DEBUG,
            "fleet %s/%s: %s",
            *key,
            rollout.step.told,
            extra=fleet_fields(
                "reconciled",
                key,
                generation=observed.generation,
                desired=rollout.desired.label,
                applied=rollout.applied.label,
                phase=rollout.step.phase,
                calls=len(decision.worker_calls),
                pod_actions=len(decision.pod_actions),
            ),
        )
        if sent:
            return QUICKLY_SECONDS if sent is Sent.ENDED else fold_seconds(session.calls)
        waits = [BUSY_SECONDS if busy or caller is None else rest_seconds]
        asked = (rollout.step.requeue_after_seconds, decision.pods.requeue_after_seconds)
        waits += [s for s in asked if s is not None]
        waits += [session.statuses.held_back_seconds(), self._observer.turn_in_seconds(key)]
        return min(waits)

    async def _call(
        self,
        session: FleetSession,
        caller: Caller | None,
        observed: FleetObserved,
        decision: Decision,
    ) -> Sent:
        """Send the calls to workers. Waits up to `ANSWER_WAIT_SECONDS`."""
        if caller is None:
            return Sent.NOTHING
        if decision.is_planned:
            epoch = session.epochs.for_step(decision.goals, admits=decision.admits)
            caller = replace(caller, epoch=epoch)
        views = {w.pod.uid: w.pod for w in observed.workers}
        return await self._calls.act(caller, decision.worker_calls, views)

    def _take_statuses(
        self, session: FleetSession, observed: FleetObserved, decision: Decision
    ) -> None:
        """Pass the statuses to the writer."""
        session.statuses.take_fleet(observed.uid, observed.status, decision.fleet)
        for each in observed.all_weights:
            status = decision.weights[each.uid]
            if isinstance(each, WeightsView):
                adapter = each.spec.adapter
                self._metrics.count_rollouts(session.key, adapter, each.status, status)
            session.statuses.take_weights(each, status)

    def _report_orphans(self, session: FleetSession) -> float | None:
        """Report on WeightVersions without a fleet; without any, or once all is reported, forget the fleet."""
        key, statuses = session.key, session.statuses
        self._metrics.forget_fleet(key)
        named = self._store.named(key)
        if not len(named):
            self._sessions.forget(key)
            return None
        orphans, beyond = self._observer.looked_at(session), self._observer.beyond(session)
        statuses.forget_all_but(w.uid for w in (*orphans, *beyond))
        seconds = asyncio.get_running_loop().time()
        made, left_seconds = session.unowned.update(
            key, orphans, seconds, beyond=beyond, now=datetime.now(UTC)
        )
        for each in (*orphans, *beyond):
            statuses.take_weights(each, made[each.uid])
        statuses.begin_due()
        waits = (statuses.held_back_seconds(), self._observer.turn_in_seconds(key))
        after_seconds = min(*waits, NEVER if left_seconds is None else left_seconds)
        if after_seconds != NEVER:
            return after_seconds
        is_stored = all(each.status == made[each.uid] for each in named.looked_at)
        if is_stored and not session.events.waiting and not self._pods.pods_of(key):
            # Any number of names can be mentioned, and the objects tell all. A change begins another session.
            self._sessions.forget(key)
        return None


async def _with_template(session: FleetSession, observed: FleetObserved) -> FleetObserved:
    """Add the template of the fleet's pods; None until it is read."""
    templates = session.template
    if templates.known(observed) is None:
        in_use = {w.pod.revision for w in observed.workers if not w.pod.deleting}
        await session.writes.run({TEMPLATE: partial(templates.ensure, observed, in_use)})
    else:
        session.problems.note(TEMPLATE, None)  # the spec has a recorded template again
    return replace(observed, template=templates.known(observed), release=templates.release)


def _writes(session: FleetSession, observed: FleetObserved, decision: Decision) -> dict[str, Write]:
    """The writes of a decision to pods and to the fleet's children, by part."""
    has_failed, actions = session.problems.has, decision.pod_actions
    config_map = f"ConfigMap {names.applied_config_map_name(observed.name)}"
    if has_failed(TOKEN) or has_failed(config_map):
        # A new worker would start with a foreign token or ConfigMap.
        actions = tuple(a for a in actions if not isinstance(a, CreatePod))
    applied = decision.rollout.applied if decision.is_planned else None
    writes = session.children.due(observed, applied, failed=has_failed)
    session.problems.note_gone(session.children.router_parts(observed).difference(writes))
    if actions or has_failed(PODS):
        writes[PODS] = partial(session.pods.run, actions)
    return writes


def _leaves_statuses(session: FleetSession, sent: Sent) -> bool:
    """Whether the next reconcile writes the statuses. It follows at once, with the effect of the calls. So a
    rollout of a small model costs no write per barrier, and the pin of a version does not wait for an earlier
    write.
    """
    now = asyncio.get_running_loop().time()
    if sent is Sent.ENDED:
        if session.unwritten_since is None:
            session.unwritten_since = now
        if now - session.unwritten_since <= ANSWER_WAIT_SECONDS:
            return True
    session.unwritten_since = None
    return False
