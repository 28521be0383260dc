"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: a reconcile does not depend on what changed. `core` makes all decisions. All state is
in the cluster or in the workers, and can be read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from fleet_operator.api import names
from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.actions import CreatePod, Quarantine
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.facts import Workers
from fleet_operator.core.fallback_plan import fallback_plan
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import (
    Defect,
    exhausted_epochs,
    kept_fleet_status,
    with_problems,
)
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.runtime.admin_tokens import AdminTokens
from fleet_operator.runtime.background_writes import BackgroundWrites
from fleet_operator.runtime.dispatch import SETTLE_SECONDS, Caller, Dispatcher, Sent
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.foreign_pods import is_foreign, judged, note_foreign
from fleet_operator.runtime.kube_writer import KubeWriter, Write
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.other_operators import OtherOperators, left_to
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.pod_timers import PodTimers
from fleet_operator.runtime.pod_writer import PodWriter
from fleet_operator.runtime.problems import PODS, STATUS, Problems, status_part
from fleet_operator.runtime.rollout_timers import RolloutTimers
from fleet_operator.runtime.status_writer import NEVER, StatusWriter
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.templates import TEMPLATE, Templates
from fleet_operator.runtime.traces import CallTrace, RolloutTraces
from fleet_operator.runtime.unowned_weights import UnownedWeights
from fleet_operator.runtime.worker_cache import WorkerCache

logger = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
"""The maximum age of an answer, and the time to the next reconcile, while work is in progress."""
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
        worker_cache: WorkerCache,
        calls: Dispatcher,
        objects: KubeWriter,
        statuses: StatusWriter,
        epochs: Epochs,
        rivals: OtherOperators,
        metrics: Metrics,
        problems: Problems,
        templates: Templates,
        default_image: str,
        resync_seconds: float,
        requeue: Callable[[FleetKey, float], None],
        traces: RolloutTraces | None = None,
    ) -> None:
        self._traces = traces
        self._store = store
        self._pods = pods
        self._worker_cache = worker_cache
        self._calls = calls
        self._objects = objects
        self._statuses = statuses
        self._epochs = epochs
        self._rivals = rivals
        self._metrics = metrics
        self._templates = templates
        self._default_image = default_image
        self._resync_seconds = resync_seconds
        self._requeue = requeue
        self._tokens = AdminTokens(objects)
        self._problems = problems
        self._writes = BackgroundWrites(problems, metrics, requeue)
        self._reported: dict[FleetKey, set[tuple[str, type[Exception]]]] = {}
        self._watch = RolloutTimers()
        self._pod_watch = PodTimers()
        self._orphans = UnownedWeights()
        self._others: dict[FleetKey, str] = {}
        self._polled_often: dict[FleetKey, Collection[str]] = {}
        """Uids of workers whose state is read every `BUSY_SECONDS`: in a rollout all of the fleet."""
        self._unwritten_since: dict[FleetKey, float] = {}
        self._pod_changes = PodWriter(objects)

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet, and schedule the next reconcile. Raises nothing except cancellation."""
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - a defect in one fleet must not stop the others
            self._report(key, Defect(part=RECONCILE, error=error))
            self._problems.note(key, RECONCILE, error)
            after_seconds = BUSY_SECONDS
            await self._stand_still(key)
        else:
            self._problems.note(key, RECONCILE, None)
        if after_seconds is not None:
            self._requeue(key, after_seconds)

    async def stop(self) -> None:
        """Cancel the writes in flight."""
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
        if caller is not None:
            caller = replace(caller, trace=self._trace(key, observed, decision, now))
        calling = asyncio.create_task(self._call(key, caller, observed, decision))
        # After the calls, and without waiting: a slow API server must not prolong a pause.
        self._writes.begin(key, self._writes_of(key, observed, decision))
        parts = self._take_statuses(key, observed, decision)
        sent = await calling
        if not self._leaves_statuses(key, sent):
            awaited = (
                {status_part(names.FLEET_KIND, observed.name)} if rollout.waits_for_pin else ()
            )
            self._writes.begin(key, self._due(key, parts), awaited=awaited)
        unsettled = observed.workers.where(lambda f: f.busy or not f.pod.ready)
        polled_often = unsettled if decision.at_rest else observed.workers
        self._polled_often[key] = {w.pod.uid for w in polled_often}
        busy = bool(unsettled) or not decision.at_rest
        refused = self._problems.has(key, PODS)
        logger.log(
            logging.INFO if sent or (decision.pod_actions and not refused) else logging.DEBUG,
            "fleet %s/%s: %s",
            *key,
            rollout.step.note,
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
            return QUICKLY_SECONDS if sent is Sent.ENDED else self._calls.fold_seconds(key)
        waits = [BUSY_SECONDS if busy or caller is None else self._resync_seconds]
        asked = (rollout.step.requeue_after_seconds, decision.pods.requeue_after_seconds)
        waits += [s for s in asked if s is not None]
        return min([*waits, self._statuses.held_back_seconds(key)])

    async def _with_template(self, key: FleetKey, observed: FleetObserved) -> FleetObserved:
        """Add the template of the fleet's pods; None until it is read."""
        if self._templates.known(key, observed) is None:
            in_use = {w.pod.revision for w in observed.workers if not w.pod.deleting}
            work = partial(self._templates.ensure, key, observed, in_use)
            await self._writes.run(key, {TEMPLATE: work})
        else:
            self._problems.note(key, TEMPLATE, None)  # the spec has a recorded template again
        template = self._templates.known(key, observed)
        return replace(observed, template=template, release=self._templates.release)

    async def _call(
        self, key: FleetKey, caller: Caller | None, observed: FleetObserved, decision: Decision
    ) -> Sent:
        """Send the calls to workers. Waits up to `SETTLE_SECONDS`."""
        if caller is None:
            return Sent.NOTHING
        if decision.is_planned:
            goal = decision.rollout.step.goal
            caller = replace(caller, epoch=self._epochs.for_step(key, goal))
        views = {w.pod.uid: w.pod for w in observed.workers}
        return await self._calls.act(caller, decision.worker_calls, views)

    def _trace(
        self, key: FleetKey, observed: FleetObserved, decision: Decision, now: datetime
    ) -> CallTrace | None:
        if self._traces is None:
            return None
        return self._traces.look(key, observed.all_weights, decision.weights, now=now)

    def _writes_of(
        self, key: FleetKey, observed: FleetObserved, decision: Decision
    ) -> dict[str, Write]:
        """The writes other than statuses, by part."""
        actions = decision.pod_actions
        if any(self._problems.has(key, part) for part in (_TOKEN, _applied_part(key))):
            # A new worker would start with a foreign token or ConfigMap.
            actions = tuple(a for a in actions if not isinstance(a, CreatePod))
        applied = decision.rollout.applied if decision.is_planned else None
        has_failed = partial(self._problems.has, key)
        writes = self._objects.children(observed, applied, failed=has_failed)
        self._problems.note_gone(key, self._objects.router_parts(observed).difference(writes))
        if actions or has_failed(PODS):
            writes[PODS] = partial(self._pod_changes.run, key, actions)
        return writes

    def _leaves_statuses(self, key: FleetKey, sent: Sent) -> bool:
        """Whether the next reconcile writes the statuses. It follows at once, with the effect of the calls. So
        a rollout of a small model costs no write per barrier, and the pin of a version does not wait
        for an earlier write.
        """
        now = asyncio.get_running_loop().time()
        if sent is Sent.ENDED:
            since = self._unwritten_since.setdefault(key, now)
            if now - since <= SETTLE_SECONDS:
                return True
        self._unwritten_since.pop(key, None)
        return False

    def _take_statuses(
        self, key: FleetKey, observed: FleetObserved, decision: Decision
    ) -> dict[str, str]:
        """Pass the statuses to the writer. Returns: uids by part."""
        uid = self._statuses.take_fleet(key, observed.uid, observed.status, decision.fleet)
        parts = {status_part(names.FLEET_KIND, observed.name): uid}
        for each in observed.all_weights:
            status = decision.weights[each.uid]
            if isinstance(each, WeightsView):
                self._metrics.count_rollouts(key, each.spec.adapter, each.status, status)
            uid = self._statuses.take_weights(key, each, status)
            parts[status_part(names.WEIGHTS_KIND, each.name)] = uid
        self._problems.forget_all_but(key, STATUS, set(parts))
        return parts

    def _due(self, key: FleetKey, parts: Mapping[str, str]) -> dict[str, Write]:
        """The status writes that are due or have failed, by part. `parts`: uids by part."""
        return {
            part: partial(self._statuses.write, uid)
            for part, uid in parts.items()
            if self._statuses.is_due(uid) or self._problems.has(key, part)
        }

    async def _report_undecided(self, key: FleetKey, record: FleetRecord) -> float:
        """Write the conditions of a fleet whose spec or pods are not read yet, without calls."""
        problems = self._problems.of(key)
        unreadable = record.unreadable if record.spec is None else ""
        if not (problems or unreadable):
            return BUSY_SECONDS
        weights = self._all_weights(key)
        self._statuses.forget_all_but(key, {record.uid, *(w.uid for w in weights)})
        made = report_undecided(
            key[1],
            generation=record.generation,
            unreadable=unreadable,
            status=self._statuses.fleet(record),
            weights=weights,
            problems=problems,
            now=datetime.now(UTC),
        )
        uid = self._statuses.take_fleet(key, record.uid, record.status, made.fleet)
        parts = {status_part(names.FLEET_KIND, key[1]): uid}
        for each in weights:
            uid = self._statuses.take_weights(key, each, made.weights[each.uid])
            parts[status_part(names.WEIGHTS_KIND, each.name)] = uid
        self._writes.begin(key, self._due(key, parts))
        return min(self._resync_seconds, self._statuses.held_back_seconds(key))

    async def _stand_still(self, key: FleetKey) -> None:
        """After a defect in the reconcile itself: renew pauses, and report the failure. One does not depend
        on the other.
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
            problems=self._problems.of(key),
        )
        for attempt in (self._renew_pauses, self._report_standstill):
            try:
                await attempt(key, record, observed)
            except Exception as error:  # noqa: BLE001 - log it; there is no further fallback
                self._report(key, Defect(part=f"{RECONCILE} ({attempt.__name__})", error=error))

    async def _renew_pauses(
        self, key: FleetKey, record: FleetRecord, observed: FleetObserved
    ) -> None:
        token = self._tokens.of(key, record.uid)
        if token is None:
            return
        now = asyncio.get_running_loop().time()
        caller = self._caller_with(key, observed.spec, token)
        await self._ask(key, caller)
        workers = Workers([self._worker_cache.view(p, now) for p in self._pods.pods_of(key)])
        calls = fallback_plan(replace(observed, workers=workers)).step.actions
        views = {w.pod.uid: w.pod for w in workers}
        worker_calls = [c for c in calls if not isinstance(c, Quarantine)]
        await self._calls.act(caller, worker_calls, views)

    async def _report_standstill(
        self, key: FleetKey, record: FleetRecord, observed: FleetObserved
    ) -> None:
        status = with_problems(
            kept_fleet_status(self._statuses.fleet(record)),
            record.status.conditions,
            observed.problems,
            generation=record.generation,
            now=datetime.now(UTC),
        )
        uid = self._statuses.take_fleet(key, record.uid, record.status, status)
        self._writes.begin(key, self._due(key, {status_part(names.FLEET_KIND, key[1]): uid}))

    def _report_defects(self, key: FleetKey, defects: Sequence[Defect]) -> None:
        for defect in defects:
            self._report(key, defect)
        known = {(d.part, type(d.error)) for d in defects}
        self._reported[key] = {r for r in self._reported.get(key, set()) if r in known}

    def _report(self, key: FleetKey, defect: Defect) -> None:
        """Log a defect with its traceback if it is new. It may repeat every second."""
        self._metrics.failures.labels("defect").inc()
        reported = self._reported.setdefault(key, set())
        known = (defect.part, type(defect.error))
        logger.log(
            logging.DEBUG if known in reported else logging.ERROR,
            "fleet %s/%s: defect in %s",
            *key,
            defect.part,
            exc_info=defect.error,
            extra=fleet_fields("defect", key, part=defect.part),
        )
        reported.add(known)

    def forget_token(self, key: FleetKey) -> None:
        """Read a fleet's token again, after a worker has refused it."""
        self._tokens.note_stale([key])

    def forget_tokens(self) -> None:
        """Read all tokens again, since one may have changed."""
        self._tokens.note_stale(self._store.fleet_keys())

    async def _caller(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> Caller | None:
        """Token, port and epoch for calls to the fleet's workers; None without a token."""
        if self._tokens.is_due(key, record.uid):
            await self._writes.run(key, {_TOKEN: partial(self._tokens.read, key, record, spec)})
        token = self._tokens.of(key, record.uid)
        return None if token is None else self._caller_with(key, spec, token)

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
        polled_often = self._polled_often.get(key, ())
        ages = {True: BUSY_SECONDS * 0.9, False: self._resync_seconds * 0.9}
        due = [
            p
            for p in pods
            if self._worker_cache.is_due(p, now, max_age_seconds=ages[p.uid in polled_often])
        ]
        await self._calls.ask(caller, due)

    def _observe(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> FleetObserved:
        now = asyncio.get_running_loop().time()
        seen = self._pod_watch.look(key, self._pods.pods_of(key), now)
        note_foreign(self._problems, key, [p for p in seen if is_foreign(p, record.uid)])
        # Of two pods with the same name, the one that is being deleted is not a worker any more.
        pods = (judged(p, record.uid) for p in self._pod_changes.laid_over(key, seen))
        # The pods come in order of ordinal.
        workers = Workers({p.ordinal: self._worker_cache.view(p, now) for p in pods}.values())
        weights = tuple(self._watched(key, w, now) for w in self._store.weights_of(key))
        self._watch.forget_all_but(key, {w.uid for w in weights})
        deaf = exhausted_epochs(self._epochs.beyond(key, (w.pod for w in workers)))
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
            workers=workers,
            unread=unread,
            unreadable=record.unreadable,
            problems=(*self._problems.of(key), *deaf),
            router=self._objects.routers.of(key),
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
        """The WeightVersion with its last status and the times of its rollout."""
        known = self._statuses.weights(weights)
        calling = not self._epochs.is_settling(key)
        return replace(
            known, watched=self._watch.look(key, known.uid, known.status, now, calling=calling)
        )

    def _leave(self, key: FleetKey, record: FleetRecord, other: str) -> float:
        """Leave a fleet to another operator, and report it once. Returns: seconds to the next look."""
        if self._others.get(key) != other:
            self._others[key] = other
            self._statuses.report(key, record.uid, left_to(other, self._rivals.own, key[1]))
        self._metrics.left_to_others.set(len(self._others))
        self._metrics.forget_fleet(key)
        # The next status begins with the one that the other operator has written.
        self._statuses.forget_all_but(key, set())
        self._watch.forget_all_but(key, ())
        self._pod_watch.forget(key)
        if self._traces is not None:
            self._traces.forget(key)
        self._polled_often.pop(key, None)
        return self._resync_seconds

    async def _refuse_orphans(self, key: FleetKey) -> float | None:
        """Report on WeightVersions without a fleet, and forget the fleet."""
        orphans = self._all_weights(key)
        self._metrics.forget_fleet(key)
        self._statuses.forget_all_but(key, {w.uid for w in orphans})
        self._tokens.forget(key)
        self._problems.forget_fleet(key)
        self._reported.pop(key, None)
        self._polled_often.pop(key, None)
        self._unwritten_since.pop(key, None)
        self._pod_changes.forget(key)
        self._templates.forget(key)
        self._epochs.forget(key)
        self._watch.forget_all_but(key, ())
        self._pod_watch.forget(key)
        if self._traces is not None:
            self._traces.forget(key)
        self._others.pop(key, None)
        self._metrics.left_to_others.set(len(self._others))
        seconds = asyncio.get_running_loop().time()
        made, left_seconds = self._orphans.look(key, orphans, seconds, now=datetime.now(UTC))
        parts = {
            status_part(names.WEIGHTS_KIND, o.name): self._statuses.take_weights(
                key, o, made[o.uid]
            )
            for o in orphans
        }
        self._writes.begin(key, self._due(key, parts))
        held_back_seconds = self._statuses.held_back_seconds(key)
        after_seconds = min(held_back_seconds, NEVER if left_seconds is None else left_seconds)
        return None if after_seconds == NEVER else after_seconds


def _applied_part(key: FleetKey) -> str:
    return f"ConfigMap {names.applied_config_map_name(key[1])}"
