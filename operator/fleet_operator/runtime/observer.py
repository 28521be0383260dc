"""Puts together what a decision is made on: a fleet's objects, its workers, and the times of their waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.facts import Workers
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import exhausted_epochs
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.foreign_pods import as_deleting, is_foreign, note_foreign
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.pod_timers import PodTimers
from fleet_operator.runtime.pod_writer import PodWriter
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.rollout_timers import RolloutTimers
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.status_writer import StatusWriter, W
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.worker_cache import WorkerCache


class Observer:
    """Observes fleets.

    Args:
        operator: The Lease of this process, as `namespace/name`.
        store: Fleets and WeightVersions.
        pods: Pods.
        pod_writer: Writes to pods that the watch has not delivered yet.
        worker_cache: Last answers of the workers.
        routers: Objects of routers.
        statuses: Last computed statuses.
        epochs: Fleets whose workers refuse calls.
        problems: Failures of the runtime.
    """

    def __init__(
        self,
        operator: str,
        *,
        store: Store,
        pods: PodInformer,
        pod_writer: PodWriter,
        worker_cache: WorkerCache,
        routers: RouterObjects,
        statuses: StatusWriter,
        epochs: Epochs,
        problems: Problems,
    ) -> None:
        self._operator = operator
        self._store = store
        self._pods = pods
        self._pod_writer = pod_writer
        self._worker_cache = worker_cache
        self._routers = routers
        self._statuses = statuses
        self._epochs = epochs
        self._problems = problems
        self._rollouts = RolloutTimers()
        self._waits = PodTimers()

    def observe(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> FleetObserved:
        """A fleet as it is now, without its template."""
        now = asyncio.get_running_loop().time()
        seen = self._waits.update(key, self._pods.pods_of(key), now)
        note_foreign(self._problems, key, [p for p in seen if is_foreign(p, record.uid)])
        # Of two pods with the same name, the one that is being deleted is not a worker any more.
        pods = (as_deleting(p, record.uid) for p in self._pod_writer.laid_over(key, seen))
        # The pods come in order of ordinal.
        workers = Workers({p.ordinal: self._worker_cache.view(p, now) for p in pods}.values())
        named = self._store.named(key)
        looked_at = named.looked_at
        weights = tuple(self._watched(key, w, now) for w in looked_at if isinstance(w, WeightsView))
        self._rollouts.forget_all_but(key, {w.uid for w in weights})
        deaf = exhausted_epochs(self._epochs.beyond(key, (w.pod for w in workers)))
        unread = tuple(self._last(u) for u in looked_at if isinstance(u, UnreadWeights))
        observed = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
            status=self._statuses.fleet(record),
            operator=self._operator,
            stored=self._statuses.stored(record),
            weights=weights,
            workers=workers,
            unread=unread,
            beyond=tuple(self._last(w) for w in named.turn(now)),
            beyond_count=named.beyond,
            unreadable=record.unreadable,
            unreadable_reason=record.unreadable_reason,
            problems=(*self._problems.of(key), *deaf),
            router=self._routers.of(key, record.uid),
        )
        uids = (w.uid for w in observed.all_weights)
        self._statuses.forget_all_but(key, {record.uid, *uids})
        return observed

    def workers(self, key: FleetKey) -> Workers:
        """The workers of a fleet by their pods alone."""
        now = asyncio.get_running_loop().time()
        return Workers([self._worker_cache.view(p, now) for p in self._pods.pods_of(key)])

    def looked_at(self, key: FleetKey) -> list[WeightsView | UnreadWeights]:
        """Every WeightVersion that the fleet looks at, with its last status."""
        return [self._last(w) for w in self._store.named(key).looked_at]

    def beyond(self, key: FleetKey) -> list[WeightsView | UnreadWeights]:
        """The WeightVersions that the fleet does not look at and that get a status now."""
        now = asyncio.get_running_loop().time()
        return [self._last(w) for w in self._store.named(key).turn(now)]

    def turn_in_seconds(self, key: FleetKey) -> float:
        """Seconds until other ones get a status; infinite if each has one."""
        return self._store.named(key).turn_in_seconds(asyncio.get_running_loop().time())

    def note_decided(self, key: FleetKey, weights: Mapping[str, WeightsStatus]) -> None:
        """Begin to measure what a decision has begun. `weights`: new statuses by uid."""
        now = asyncio.get_running_loop().time()
        for uid, status in weights.items():
            self._rollouts.decided(key, uid, status, now)

    def forget(self, key: FleetKey) -> None:
        """Forget the times of a fleet that is gone or that another release drives."""
        self._rollouts.forget_all_but(key, ())
        self._waits.forget(key)

    def _last(self, weights: W) -> W:
        """The WeightVersion with its last status."""
        return self._statuses.weights(weights, self._store.version_of(weights))

    def _watched(self, key: FleetKey, weights: WeightsView, now: float) -> WeightsView:
        """The WeightVersion with its last status and the times of its rollout."""
        known = self._last(weights)
        calling = not self._epochs.is_term_pending(key)
        return replace(
            known, watched=self._rollouts.update(key, known.uid, known.status, now, calling=calling)
        )
