"""Puts together what a decision is made on: a fleet's objects, its workers, and the times of their waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.facts import Workers
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import exhausted_epochs
from fleet_operator.runtime.foreign_pods import as_deleting, is_foreign, note_foreign
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.session import FleetSession
from fleet_operator.runtime.status_writer import W
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.worker_cache import WorkerCache
from rlfleet_resources.weights_status import WeightsStatus


class Observer:
    """Observes fleets.

    `operator`: the Lease of this process, as `namespace/name`.
    """

    def __init__(
        self,
        operator: str,
        *,
        store: Store,
        pods: PodInformer,
        worker_cache: WorkerCache,
        routers: RouterObjects,
    ) -> None:
        self._operator = operator
        self._store = store
        self._pods = pods
        self._worker_cache = worker_cache
        self._routers = routers

    def observe(self, session: FleetSession, record: FleetRecord, spec: FleetSpec) -> FleetObserved:
        """A fleet as it is now, without its template."""
        key, statuses = session.key, session.statuses
        now = asyncio.get_running_loop().time()
        seen = session.pod_waits.update(self._pods.pods_of(key), now)
        note_foreign(session.problems, [p for p in seen if is_foreign(p, record.uid)])
        # Of two pods with the same name, the one that is being deleted is not a worker any more.
        pods = (as_deleting(p, record.uid) for p in session.pods.laid_over(seen))
        # The pods come in order of ordinal.
        workers = Workers({p.ordinal: self._worker_cache.view(p, now) for p in pods}.values())
        named = self._store.named(key)
        looked_at = named.looked_at
        weights = tuple(
            self._watched(session, w, now) for w in looked_at if isinstance(w, WeightsView)
        )
        session.rollouts.forget_all_but({w.uid for w in weights})
        deaf = exhausted_epochs(session.epochs.beyond(w.pod for w in workers))
        unread = tuple(self._last(session, u) for u in looked_at if isinstance(u, UnreadWeights))
        observed = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
            status=statuses.fleet(record),
            operator=self._operator,
            stored=statuses.stored(record),
            weights=weights,
            workers=workers,
            unread=unread,
            beyond=tuple(self._last(session, w) for w in named.turn(now)),
            beyond_count=named.beyond,
            unreadable=record.unreadable,
            unreadable_reason=record.unreadable_reason,
            problems=(*session.problems.all(), *deaf),
            router=self._routers.of(key, record.uid),
            clock_seconds=now,
        )
        statuses.forget_all_but(w.uid for w in observed.all_weights)
        return observed

    def workers(self, key: FleetKey) -> Workers:
        """The workers of a fleet by their pods alone."""
        now = asyncio.get_running_loop().time()
        return Workers([self._worker_cache.view(p, now) for p in self._pods.pods_of(key)])

    def looked_at(self, session: FleetSession) -> list[WeightsView | UnreadWeights]:
        """Every WeightVersion that the fleet looks at, with its last status."""
        return [self._last(session, w) for w in self._store.named(session.key).looked_at]

    def beyond(self, session: FleetSession) -> list[WeightsView | UnreadWeights]:
        """The WeightVersions that the fleet does not look at and that get a status now."""
        now = asyncio.get_running_loop().time()
        return [self._last(session, w) for w in self._store.named(session.key).turn(now)]

    def turn_in_seconds(self, key: FleetKey) -> float:
        """Seconds until other ones get a status; infinite if each has one."""
        return self._store.named(key).turn_in_seconds(asyncio.get_running_loop().time())

    @staticmethod
    def note_decided(session: FleetSession, weights: Mapping[str, WeightsStatus]) -> None:
        """Begin to measure what a decision has begun. `weights`: new statuses by uid."""
        now = asyncio.get_running_loop().time()
        for uid, status in weights.items():
            session.rollouts.decided(uid, status, now, term=session.epochs.calling_term)

    def _last(self, session: FleetSession, weights: W) -> W:
        """The WeightVersion with its last status."""
        return session.statuses.weights(weights, self._store.version_of(weights))

    def _watched(self, session: FleetSession, weights: WeightsView, now: float) -> WeightsView:
        """The WeightVersion with its last status and the times of its rollout."""
        known = self._last(session, weights)
        term = session.epochs.calling_term
        watched = session.rollouts.update(known.uid, known.status, now, term=term)
        return replace(known, watched=watched)
