"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: nothing here knows what changed. Everything that is decided is decided in `core`;
everything that is known stands in the cluster, in the workers, or can be asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import fleet_plan, rollout_plan
from fleet_operator.core.actions import Quarantine, WorkerAction
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.weights_status import refused_status, weights_status
from fleet_operator.errors import FleetError
from fleet_operator.runtime.calls import Caller, Calls
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.informer import FleetKey, PodInformer
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects
from fleet_operator.runtime.statuses import Statuses
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.worker_book import WorkerBook

logger = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
"""How old an answer may be, and how soon to look again, while something is under way."""
QUICKLY_SECONDS = 0.0


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
        metrics: Metrics,
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
        self._metrics = metrics
        self._default_image = default_image
        self._resync_seconds = resync_seconds
        self._again = again
        self._tokens: dict[str, str] = {}
        self._restless: set[FleetKey] = set()

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet and say when to look again. Never raises but for cancellation."""
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(key)
        except FleetError as error:
            self._metrics.failures.labels(type(error).__name__).inc()
            logger.warning("fleet %s/%s: %s", *key, error)
            after_seconds = getattr(error, "after_seconds", None) or BUSY_SECONDS
        except Exception:
            # A defect of ours on one fleet must not stop the others; it is said each time.
            self._metrics.failures.labels("defect").inc()
            logger.exception("fleet %s/%s: defect", *key)
            after_seconds = self._resync_seconds
        if after_seconds is not None:
            self._again(key, after_seconds)

    async def _reconcile(self, key: FleetKey) -> float | None:
        record = self._store.fleet(key)
        if record is None:
            await self._refuse_orphans(key)
            return None
        caller = await self._caller(key, record)
        await self._ask(key, caller)
        now = datetime.now(UTC)
        observed = self._observe(key, record)
        rollout = rollout_plan.plan_rollout(observed, now=now)
        pods = fleet_plan.plan_fleet(
            observed, default_image=self._default_image, disturbed=rollout.step.disturbed
        )
        status = fleet_status(observed, rollout, pods, now=now)
        caller = replace(caller, epoch=self._epochs.for_step(key, rollout.step.goal.version))
        pod_actions = [
            *pods.actions,
            *(a for a in rollout.step.actions if isinstance(a, Quarantine)),
        ]
        worker_calls = [a for a in rollout.step.actions if isinstance(a, WorkerAction)]
        views = {w.pod.uid: w.pod for w in observed.workers}
        sent, *_ = await asyncio.gather(
            self._calls.act(caller, worker_calls, views),
            self._objects.ensure_children(observed, rollout.applied),
            *(self._objects.change_pod(observed.namespace, a) for a in pod_actions),
            self._statuses.write_fleet(observed, status),
            *(self._write_weights(observed, w, rollout, now) for w in observed.weights),
        )
        self._metrics.show_fleet(key, status)
        busy = rollout.step.phase is not RolloutPhase.APPLIED or any(
            w.busy or not w.pod.ready for w in observed.workers
        )
        self._restless = self._restless | {key} if busy else self._restless - {key}
        logger.log(
            logging.INFO if sent or pod_actions else logging.DEBUG,
            "fleet %s/%s: %s",
            *key,
            rollout.step.note,
            extra={
                "generation": observed.generation,
                "desired": rollout.desired.version,
                "applied": rollout.applied.version,
                "phase": rollout.step.phase,
                "calls": len(worker_calls),
                "pod_actions": len(pod_actions),
            },
        )
        if sent:
            return QUICKLY_SECONDS
        waits = [BUSY_SECONDS if busy else self._resync_seconds]
        waits += [s for s in (rollout.step.requeue_after_seconds,) if s is not None]
        waits += [self._statuses.held_back_seconds(key)]
        return min(waits)

    async def _caller(self, key: FleetKey, record: FleetRecord) -> Caller:
        if record.uid not in self._tokens:
            bare = FleetObserved(
                name=key[1],
                namespace=key[0],
                uid=record.uid,
                generation=record.generation,
                spec=record.spec,
            )
            self._tokens[record.uid] = await self._objects.ensure_token(bare)
        return Caller(
            key=key,
            token=self._tokens[record.uid],
            admin_port=record.spec.serving.admin_port,
            epoch=self._epochs.last(key),
        )

    async def _ask(self, key: FleetKey, caller: Caller) -> None:
        pods = self._pods.pods_of(key)
        now = asyncio.get_running_loop().time()
        age = BUSY_SECONDS * 0.9 if key in self._restless else self._resync_seconds * 0.9
        due = [p for p in pods if self._book.is_due(p, now, max_age_seconds=age)]
        await self._calls.ask(caller, due)

    def _observe(self, key: FleetKey, record: FleetRecord) -> FleetObserved:
        now = asyncio.get_running_loop().time()
        # Of two pods with one name the one that is going is not a worker any more.
        workers = {p.ordinal: self._book.view(p, now) for p in self._pods.pods_of(key)}
        return FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=record.spec,
            status=self._statuses.fleet(record),
            weights=tuple(self._statuses.weights(w) for w in self._store.weights_of(key)),
            workers=tuple(workers[n] for n in sorted(workers)),
        )

    async def _write_weights(
        self,
        observed: FleetObserved,
        weights: WeightsView,
        rollout: rollout_plan.RolloutPlan,
        now: datetime,
    ) -> None:
        base = observed.base_weights
        if base is not None and weights.uid != base.uid:
            told = f"WeightVersion {base.name} is older and steers this fleet's weights; delete one"
            reason = ConditionReason.SECOND_BASE_VERSION
            status = refused_status(weights, reason=reason, message=told, now=now)
        else:
            status = weights_status(observed, weights, rollout, now=now)
        applied = await self._statuses.write_weights(weights, status)
        if applied:
            self._metrics.show_rollout((observed.namespace, observed.name), status)

    async def _refuse_orphans(self, key: FleetKey) -> None:
        now = datetime.now(UTC)
        self._metrics.forget_fleet(key)
        for weights in (self._statuses.weights(w) for w in self._store.weights_of(key)):
            told = f"there is no InferenceFleet {key[1]!r} in namespace {key[0]!r}; create it"
            reason = ConditionReason.FLEET_NOT_FOUND
            status = refused_status(weights, reason=reason, message=told, now=now)
            await self._statuses.write_weights(weights, status)
