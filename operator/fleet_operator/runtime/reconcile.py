"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: nothing here knows what changed. Everything that is decided is decided in `core`;
everything that is known stands in the cluster, in the workers, or can be asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from fleet_operator.api import names
from fleet_operator.api.fleet import FleetSpec, FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.actions import CreatePod, Quarantine
from fleet_operator.core.decision import Decision, decide, report_undecided
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.standstill import standstill
from fleet_operator.core.transitions import just_applied
from fleet_operator.core.troubles import (
    Defect,
    deaf_workers,
    kept_fleet_status,
    with_troubles,
)
from fleet_operator.runtime.calls import Caller, Calls
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.foreign_pods import is_foreign, judged, note_foreign
from fleet_operator.runtime.informer import FleetKey, PodInformer
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects, Write
from fleet_operator.runtime.orphans import Orphans
from fleet_operator.runtime.pod_changes import PodChanges
from fleet_operator.runtime.pod_watch import PodWatch
from fleet_operator.runtime.rivals import Rivals, left_to
from fleet_operator.runtime.statuses import NEVER, Statuses
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.templates import TEMPLATE, Templates
from fleet_operator.runtime.troubles import PODS, STATUS, Troubles, status_part
from fleet_operator.runtime.watch import Watch
from fleet_operator.runtime.worker_book import WorkerBook
from fleet_operator.runtime.writes import Writes

logger = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
"""How old an answer may be, and how soon to look again, while something is under way."""
QUICKLY_SECONDS = 0.0
RECONCILE = "the reconcile"
_TOKEN = "the admin token"  # noqa: S105 - the name of a part


class Reconciler:
    """Brings fleets to what their objects ask for, one call of `reconcile` at a time per fleet."""

    def __init__(
        self,
        *,
        store: Store,
        pods: PodInformer,
        book: WorkerBook,
        calls: Calls,
        objects: Objects,
        statuses: Statuses,
        epochs: Epochs,
        rivals: Rivals,
        metrics: Metrics,
        troubles: Troubles,
        templates: Templates,
        default_image: str,
        resync_seconds: float,
        again: Callable[[FleetKey, float], None],
    ) -> None:
        self._store = store
        self._pods = pods
        self._book = book
        self._calls = calls
        self._objects = objects
        self._statuses = statuses
        self._epochs = epochs
        self._rivals = rivals
        self._metrics = metrics
        self._templates = templates
        self._default_image = default_image
        self._resync_seconds = resync_seconds
        self._again = again
        self._tokens: dict[FleetKey, tuple[str, str]] = {}
        self._stale_tokens: set[FleetKey] = set()
        self._troubles = troubles
        self._writes = Writes(troubles, metrics, again)
        self._reported: dict[FleetKey, set[tuple[str, type[Exception]]]] = {}
        self._watch = Watch()
        self._pod_watch = PodWatch()
        self._orphans = Orphans()
        self._others: dict[FleetKey, str] = {}
        self._restless: set[FleetKey] = set()
        self._pod_changes = PodChanges(objects)

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet and say when to look again. Never raises but for cancellation."""
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - a defect of one fleet must not stop the others
            self._report(key, Defect(part=RECONCILE, error=error))
            self._troubles.note(key, RECONCILE, error)
            after_seconds = BUSY_SECONDS
            await self._stand_still(key)
        else:
            self._troubles.note(key, RECONCILE, None)
        if after_seconds is not None:
            self._again(key, after_seconds)

    async def stop(self) -> None:
        """Give up the writes in flight."""
        await self._writes.stop()

    async def _reconcile(self, key: FleetKey) -> float | None:
        record = self._store.fleet(key)
        if record is None:
            return await self._refuse_orphans(key)
        self._orphans.forget(key)
        if other := await self._rivals.driver(record.status.operator):
            return self._leave(key, record, other)
        if self._others.pop(key, None):
            self._metrics.left_to_others.set(len(self._others))
        if record.spec is None or not self._pods.is_synced(key[0]):
            return await self._report_undecided(key, record)
        caller = await self._caller(key, record, record.spec)
        if caller is not None:
            await self._ask(key, caller)
        now = datetime.now(UTC)
        observed = await self._with_template(key, self._observe(key, record, record.spec))
        decision = decide(observed, default_image=self._default_image, now=now)
        self._report_defects(key, decision.defects)
        rollout = decision.rollout
        for uid, status in decision.weights.items():
            self._watch.decided(key, uid, status, asyncio.get_running_loop().time())
        sent, failures = await asyncio.gather(
            self._call(key, caller, observed, decision),
            self._writes.run(key, self._writes_of(key, observed, decision)),
        )
        self._metrics.show_fleet(key, decision.fleet)
        busy = not decision.at_rest or any(w.busy or not w.pod.ready for w in observed.workers)
        (self._restless.add if busy else self._restless.discard)(key)
        logger.log(
            logging.INFO if sent or (decision.pod_actions and not failures) else logging.DEBUG,
            "fleet %s/%s: %s",
            *key,
            rollout.step.note,
            extra={
                "generation": observed.generation,
                "desired": rollout.desired.label,
                "applied": rollout.applied.label,
                "phase": rollout.step.phase,
                "calls": len(decision.worker_calls),
                "pod_actions": len(decision.pod_actions),
            },
        )
        if sent:
            return QUICKLY_SECONDS
        if rollout.waits_for_pin and self._statuses.is_written(observed.uid):
            return QUICKLY_SECONDS  # it is stored now
        waits = [BUSY_SECONDS if busy or caller is None else self._resync_seconds]
        asked = (rollout.step.requeue_after_seconds, decision.pods.requeue_after_seconds)
        waits += [s for s in asked if s is not None]
        waits += [self._statuses.held_back_seconds(key), *map(_retry_seconds, failures)]
        return min(waits)

    async def _with_template(self, key: FleetKey, observed: FleetObserved) -> FleetObserved:
        """With the template that its pods are made from; None while that is not known."""
        if self._templates.known(key, observed) is None:
            in_use = {w.pod.revision for w in observed.workers if not w.pod.deleting}
            work = partial(self._templates.ensure, key, observed, in_use)
            await self._writes.run(key, {TEMPLATE: work})
        else:
            self._troubles.note(key, TEMPLATE, None)  # the spec is back at one that is recorded
        template = self._templates.known(key, observed)
        return replace(observed, template=template, release=self._templates.release)

    async def _call(
        self, key: FleetKey, caller: Caller | None, observed: FleetObserved, decision: Decision
    ) -> bool:
        """Send the calls to workers. Returns: whether any was sent."""
        if caller is None:
            return False
        if decision.is_planned:
            goal = decision.rollout.step.goal
            caller = replace(caller, epoch=self._epochs.for_step(key, goal))
        views = {w.pod.uid: w.pod for w in observed.workers}
        return await self._calls.act(caller, decision.worker_calls, views)

    def _writes_of(
        self, key: FleetKey, observed: FleetObserved, decision: Decision
    ) -> dict[str, Write]:
        """What is to be written, part by part. Statuses are taken over here, written or not."""
        actions = decision.pod_actions
        if any(self._troubles.has(key, part) for part in (_TOKEN, _applied_part(key))):
            # A worker would start on what is not the fleet's.
            actions = tuple(a for a in actions if not isinstance(a, CreatePod))
        applied = decision.rollout.applied if decision.is_planned else None
        writes = self._objects.children(observed, applied)
        writes[PODS] = partial(self._pod_changes.run, key, actions)
        return writes | self._statuses_of(key, observed, decision.fleet, decision.weights)

    def _statuses_of(
        self,
        key: FleetKey,
        observed: FleetObserved,
        fleet: FleetStatus,
        weights: Mapping[str, WeightsStatus],
    ) -> dict[str, Write]:
        uid = self._statuses.take_fleet(key, observed.uid, observed.status, fleet)
        writes: dict[str, Write] = {
            status_part(names.FLEET_KIND, observed.name): partial(self._statuses.write, uid)
        }
        for each in observed.all_weights:
            status = weights[each.uid]
            if just_applied(each.status, status):
                self._show_rollout(key, each, status)
            uid = self._statuses.take_weights(key, each, status)
            part = status_part(names.WEIGHTS_KIND, each.name)
            writes[part] = partial(self._statuses.write, uid)
        self._troubles.forget_all_but(key, STATUS, set(writes))
        return writes

    def _show_rollout(
        self, key: FleetKey, weights: WeightsView | UnreadWeights, status: WeightsStatus
    ) -> None:
        if isinstance(weights, WeightsView) and not weights.spec.adapter:
            self._metrics.show_rollout(key, status)

    async def _report_undecided(self, key: FleetKey, record: FleetRecord) -> float:
        """Write the conditions of a fleet whose spec, or whose pods, have not been read yet; its
        workers are left alone.
        """
        troubles = self._troubles.of(key)
        unreadable = record.unreadable if record.spec is None else ""
        if not (troubles or unreadable):
            return BUSY_SECONDS
        weights = self._all_weights(key)
        self._statuses.forget_all_but(key, {record.uid, *(w.uid for w in weights)})
        made = report_undecided(
            key[1],
            generation=record.generation,
            unreadable=unreadable,
            status=self._statuses.fleet(record),
            weights=weights,
            troubles=troubles,
            now=datetime.now(UTC),
        )
        uid = self._statuses.take_fleet(key, record.uid, record.status, made.fleet)
        writes = {status_part(names.FLEET_KIND, key[1]): partial(self._statuses.write, uid)}
        for each in weights:
            uid = self._statuses.take_weights(key, each, made.weights[each.uid])
            part = status_part(names.WEIGHTS_KIND, each.name)
            writes[part] = partial(self._statuses.write, uid)
        failures = await self._writes.run(key, writes)
        waits = [self._resync_seconds, self._statuses.held_back_seconds(key)]
        return min([*waits, *map(_retry_seconds, failures)])

    async def _stand_still(self, key: FleetKey) -> None:
        """After a defect of the reconcile itself: renew pauses, and write that it failed.

        Each of the two is tried whatever becomes of the other one.
        """
        record = self._store.fleet(key)
        if record is None or record.spec is None or key in self._others:
            return
        observed = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=record.spec,
            status=record.status,
            troubles=self._troubles.of(key),
        )
        for attempt in (self._renew_pauses, self._report_standstill):
            try:
                await attempt(key, record, observed)
            except Exception as error:  # noqa: BLE001 - the last resort has failed, too
                self._report(key, Defect(part=f"{RECONCILE} ({attempt.__name__})", error=error))

    async def _renew_pauses(
        self, key: FleetKey, record: FleetRecord, observed: FleetObserved
    ) -> None:
        uid, token = self._tokens.get(key, ("", ""))
        if uid != record.uid:
            return
        now = asyncio.get_running_loop().time()
        caller = self._caller_with(key, observed.spec, token)
        await self._ask(key, caller)
        workers = tuple(self._book.view(p, now) for p in self._pods.pods_of(key))
        calls = standstill(replace(observed, workers=workers)).step.actions
        views = {w.pod.uid: w.pod for w in workers}
        worker_calls = [c for c in calls if not isinstance(c, Quarantine)]
        await self._calls.act(caller, worker_calls, views)

    async def _report_standstill(
        self, key: FleetKey, record: FleetRecord, observed: FleetObserved
    ) -> None:
        status = with_troubles(
            kept_fleet_status(self._statuses.fleet(record)),
            record.status.conditions,
            observed.troubles,
            generation=record.generation,
            now=datetime.now(UTC),
        )
        uid = self._statuses.take_fleet(key, record.uid, record.status, status)
        part = status_part(names.FLEET_KIND, key[1])
        await self._writes.run(key, {part: partial(self._statuses.write, uid)})

    def _report_defects(self, key: FleetKey, defects: Sequence[Defect]) -> None:
        for defect in defects:
            self._report(key, defect)
        known = {(d.part, type(d.error)) for d in defects}
        self._reported[key] = {r for r in self._reported.get(key, set()) if r in known}

    def _report(self, key: FleetKey, defect: Defect) -> None:
        """Log a defect with its traceback when it is new, since it may come back each second."""
        self._metrics.failures.labels("defect").inc()
        reported = self._reported.setdefault(key, set())
        known = (defect.part, type(defect.error))
        logger.log(
            logging.DEBUG if known in reported else logging.ERROR,
            "fleet %s/%s: defect in %s",
            *key,
            defect.part,
            exc_info=defect.error,
        )
        reported.add(known)

    def forget_token(self, key: FleetKey) -> None:
        """Read a fleet's token again: a worker does not take the one that is known."""
        self._stale_tokens.add(key)

    def forget_tokens(self) -> None:
        """Read all tokens again: somebody may have changed or deleted one."""
        self._stale_tokens |= set(self._store.fleet_keys())

    async def _caller(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> Caller | None:
        """Who calls the fleet's workers; None while there is no token.

        A token that is known serves until another one is read, so that nothing that is wrong with
        the Secret keeps pauses from being renewed.
        """
        uid, _ = self._tokens.get(key, ("", ""))
        if uid != record.uid or key in self._stale_tokens:
            await self._writes.run(key, {_TOKEN: partial(self._read_token, key, record, spec)})
        uid, token = self._tokens.get(key, ("", ""))
        return self._caller_with(key, spec, token) if uid == record.uid else None

    async def _read_token(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> None:
        uid, token = self._tokens.get(key, ("", ""))
        bare = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
        )
        known = token if uid == record.uid else ""
        token = await self._objects.ensure_token(bare, known=known)
        self._tokens[key] = (record.uid, token)
        self._stale_tokens.discard(key)

    def _caller_with(self, key: FleetKey, spec: FleetSpec, token: str) -> Caller:
        return Caller(
            key=key,
            token=token,
            admin_port=spec.serving.admin_port,
            epoch=self._epochs.last(key),
        )

    async def _ask(self, key: FleetKey, caller: Caller) -> None:
        pods = self._pods.pods_of(key)
        now = asyncio.get_running_loop().time()
        age = BUSY_SECONDS * 0.9 if key in self._restless else self._resync_seconds * 0.9
        due = [p for p in pods if self._book.is_due(p, now, max_age_seconds=age)]
        await self._calls.ask(caller, due)

    def _observe(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> FleetObserved:
        now = asyncio.get_running_loop().time()
        seen = self._pod_watch.look(key, self._pods.pods_of(key), now)
        note_foreign(self._troubles, key, [p for p in seen if is_foreign(p, record.uid)])
        # Of two pods with one name the one that is going is not a worker any more.
        pods = (judged(p, record.uid) for p in self._pod_changes.laid_over(key, seen))
        workers = {p.ordinal: self._book.view(p, now) for p in pods}
        weights = tuple(self._watched(key, w, now) for w in self._store.weights_of(key))
        self._watch.forget_all_but(key, {w.uid for w in weights})
        deaf = deaf_workers(self._epochs.beyond(key, (w.pod for w in workers.values())))
        unread = tuple(self._statuses.weights(u) for u in self._store.unread_of(key))
        observed = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
            status=self._statuses.fleet(record),
            operator=self._rivals.own,
            stored_pins=self._statuses.stored_pins(record),
            weights=weights,
            workers=tuple(workers[n] for n in sorted(workers)),
            unread=unread,
            unreadable=record.unreadable,
            troubles=(*self._troubles.of(key), *deaf),
        )
        uids = (w.uid for w in observed.all_weights)
        self._statuses.forget_all_but(key, {record.uid, *uids})
        return observed

    def _all_weights(self, key: FleetKey) -> list[WeightsView | UnreadWeights]:
        """Every WeightVersion that names the fleet, with its last status."""
        found: list[WeightsView | UnreadWeights] = []
        found += [self._statuses.weights(w) for w in self._store.weights_of(key)]
        found += [self._statuses.weights(u) for u in self._store.unread_of(key)]
        return found

    def _watched(self, key: FleetKey, weights: WeightsView, now: float) -> WeightsView:
        """The WeightVersion with its last status, and how long we have watched its rollout."""
        known = self._statuses.weights(weights)
        calling = not self._epochs.is_settling(key)
        return replace(
            known, watched=self._watch.look(key, known.uid, known.status, now, calling=calling)
        )

    def _leave(self, key: FleetKey, record: FleetRecord, other: str) -> float:
        """Leave a fleet to another release, and report it once. Returns: seconds to the next look."""
        if self._others.get(key) != other:
            self._others[key] = other
            self._statuses.report(key, record.uid, left_to(other, self._rivals.own, key[1]))
        self._metrics.left_to_others.set(len(self._others))
        self._metrics.forget_fleet(key)
        # What is computed next begins with what the other one has written.
        self._statuses.forget_all_but(key, set())
        self._watch.forget_all_but(key, ())
        self._pod_watch.forget(key)
        self._restless.discard(key)
        return self._resync_seconds

    async def _refuse_orphans(self, key: FleetKey) -> float | None:
        """Tell WeightVersions without a fleet so, and forget the fleet."""
        orphans = self._all_weights(key)
        self._metrics.forget_fleet(key)
        self._statuses.forget_all_but(key, {w.uid for w in orphans})
        self._tokens.pop(key, None)
        self._troubles.forget_fleet(key)
        self._reported.pop(key, None)
        self._stale_tokens.discard(key)
        self._restless.discard(key)
        self._pod_changes.forget(key)
        self._templates.forget(key)
        self._epochs.forget(key)
        self._watch.forget_all_but(key, ())
        self._pod_watch.forget(key)
        self._others.pop(key, None)
        self._metrics.left_to_others.set(len(self._others))
        seconds = asyncio.get_running_loop().time()
        made, left_seconds = self._orphans.look(key, orphans, seconds, now=datetime.now(UTC))
        writes: dict[str, Write] = {}
        for orphan in orphans:
            uid = self._statuses.take_weights(key, orphan, made[orphan.uid])
            part = status_part(names.WEIGHTS_KIND, orphan.name)
            writes[part] = partial(self._statuses.write, uid)
        failures = await self._writes.run(key, writes)
        waits = [self._statuses.held_back_seconds(key), *map(_retry_seconds, failures)]
        after_seconds = min([*waits, NEVER if left_seconds is None else left_seconds])
        return None if after_seconds == NEVER else after_seconds


def _retry_seconds(failure: Exception) -> float:
    """Seconds until what failed should be tried again."""
    return getattr(failure, "after_seconds", None) or BUSY_SECONDS


def _applied_part(key: FleetKey) -> str:
    return f"ConfigMap {names.applied_config_map_name(key[1])}"
