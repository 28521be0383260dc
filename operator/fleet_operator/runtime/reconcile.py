"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: nothing here knows what changed. Everything that is decided is decided in `core`;
everything that is known stands in the cluster, in the workers, or can be asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.actions import CreatePod, DeletePod, PodAction
from fleet_operator.core.decision import decide
from fleet_operator.core.observed import FleetObserved, PodView, WeightsView
from fleet_operator.core.refusals import orphan_refusal
from fleet_operator.core.transitions import just_applied
from fleet_operator.core.troubles import deaf_workers
from fleet_operator.core.weights_status import refused_status
from fleet_operator.errors import FleetError, Terminal
from fleet_operator.runtime.calls import Caller, Calls
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.informer import FleetKey, PodInformer
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects
from fleet_operator.runtime.statuses import NEVER, Statuses
from fleet_operator.runtime.store import FleetRecord, Store
from fleet_operator.runtime.troubles import PODS, Troubles
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
        self._tokens: dict[FleetKey, tuple[str, str]] = {}
        self._stale_tokens: set[FleetKey] = set()
        self._troubles = Troubles()
        self._restless: set[FleetKey] = set()
        self._deleted: dict[FleetKey, set[str]] = {}

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet and say when to look again. Never raises but for cancellation."""
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(key)
        except FleetError as error:
            after_seconds = self._note(key, error)
        except Exception:  # a defect of ours on one fleet must not stop the others; it is said
            self._metrics.failures.labels("defect").inc()
            logger.exception("fleet %s/%s: defect", *key)
            after_seconds = self._resync_seconds
        if after_seconds is not None:
            self._again(key, after_seconds)

    async def _reconcile(self, key: FleetKey) -> float | None:
        record = self._store.fleet(key)
        if record is None:
            return await self._refuse_orphans(key)
        caller = await self._caller(key, record)
        await self._ask(key, caller)
        now = datetime.now(UTC)
        observed = self._observe(key, record)
        decision = decide(observed, default_image=self._default_image, now=now)
        rollout = decision.rollout
        caller = replace(caller, epoch=self._epochs.for_step(key, rollout.step.goal))
        views = {w.pod.uid: w.pod for w in observed.workers}
        sent, *outcomes = await asyncio.gather(
            self._calls.act(caller, decision.worker_calls, views),
            self._objects.ensure_children(observed, rollout.applied),
            self._change_pods(key, decision.pod_actions),
            self._statuses.write_fleet(observed, decision.fleet),
            *(self._write_weights(key, w, decision.weights[w.uid]) for w in observed.weights),
            return_exceptions=True,
        )
        # What could not be written is tried again; workers do not wait for it.
        failures = [o for o in (sent, *outcomes) if isinstance(o, BaseException)]
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
        waits = [self._note(key, failure) for failure in failures]
        if sent and not isinstance(sent, BaseException):
            return QUICKLY_SECONDS
        waits += [BUSY_SECONDS if busy else self._resync_seconds]
        asked = (rollout.step.requeue_after_seconds, decision.pods.requeue_after_seconds)
        waits += [s for s in asked if s is not None]
        waits += [self._statuses.held_back_seconds(key)]
        return min(waits)

    def _note(self, key: FleetKey, failure: BaseException) -> float:
        """Say what could not be done. Returns: seconds until it should be tried again."""
        if not isinstance(failure, FleetError):
            raise failure
        self._metrics.failures.labels(type(failure).__name__).inc()
        logger.warning("fleet %s/%s: %s", *key, failure)
        return getattr(failure, "after_seconds", None) or BUSY_SECONDS

    async def _change_pods(self, key: FleetKey, actions: Sequence[PodAction]) -> None:
        """Change pods, and create the missing ones in portions that double.

        The first pod that cannot be created ends it: a quota would refuse all the others too.
        """
        created = [a for a in actions if isinstance(a, CreatePod)]
        failures = await self._change_at_once(
            key, [a for a in actions if not isinstance(a, CreatePod)]
        )
        portion = 1
        while created and not failures:
            failures = await self._change_at_once(key, created[:portion])
            created, portion = created[portion:], portion * 2
        refused = next((f for f in failures if isinstance(f, Terminal)), None)
        self._troubles.note(key, PODS, refused)
        if failures:
            raise failures[0]

    async def _change_at_once(
        self, key: FleetKey, actions: Sequence[PodAction]
    ) -> list[BaseException]:
        namespace, _ = key
        changes = (self._objects.change_pod(namespace, a) for a in actions)
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        done = (a for a, o in zip(actions, outcomes, strict=True) if o is None)
        self._deleted.setdefault(key, set()).update(a.uid for a in done if isinstance(a, DeletePod))
        return [o for o in outcomes if o is not None]

    def forget_token(self, key: FleetKey) -> None:
        """Read a fleet's token again: a worker does not take the one that is known."""
        self._stale_tokens.add(key)

    def forget_tokens(self) -> None:
        """Read all tokens again: somebody may have changed or deleted one."""
        self._stale_tokens |= set(self._store.fleet_keys())

    async def _caller(self, key: FleetKey, record: FleetRecord) -> Caller:
        uid, token = self._tokens.get(key, ("", ""))
        if uid != record.uid or key in self._stale_tokens:
            bare = FleetObserved(
                name=key[1],
                namespace=key[0],
                uid=record.uid,
                generation=record.generation,
                spec=record.spec,
            )
            known = token if uid == record.uid else ""
            token = await self._objects.ensure_token(bare, known=known)
            self._tokens[key] = (record.uid, token)
            self._stale_tokens.discard(key)
        return Caller(
            key=key,
            token=token,
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
        seen = self._pods.pods_of(key)
        # What we have deleted goes, also while the watch has not told so: one more would go for it.
        going = self._deleted[key] = self._deleted.get(key, set()) & {p.uid for p in seen}
        # Of two pods with one name the one that is going is not a worker any more.
        pods = (_judged(p, record.uid, going) for p in seen)
        workers = {p.ordinal: self._book.view(p, now) for p in pods}
        weights = tuple(self._statuses.weights(w) for w in self._store.weights_of(key))
        self._statuses.forget_all_but(key, {record.uid, *(w.uid for w in weights)})
        deaf = deaf_workers(self._epochs.beyond(key, (w.pod for w in workers.values())))
        return FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=record.spec,
            status=self._statuses.fleet(record),
            weights=weights,
            workers=tuple(workers[n] for n in sorted(workers)),
            troubles=(*self._troubles.of(key), *deaf),
        )

    async def _write_weights(
        self, key: FleetKey, weights: WeightsView, status: WeightsStatus
    ) -> None:
        if just_applied(weights.status, status):
            self._metrics.show_rollout(key, status)
        await self._statuses.write_weights(weights, status)

    async def _refuse_orphans(self, key: FleetKey) -> float | None:
        """Tell WeightVersions without a fleet so, and forget the fleet."""
        now = datetime.now(UTC)
        orphans = [self._statuses.weights(w) for w in self._store.weights_of(key)]
        self._metrics.forget_fleet(key)
        self._statuses.forget_all_but(key, {w.uid for w in orphans})
        self._tokens.pop(key, None)
        self._troubles.forget_fleet(key)
        self._stale_tokens.discard(key)
        self._restless.discard(key)
        self._deleted.pop(key, None)
        self._epochs.forget(key)
        for weights in orphans:
            status = refused_status(weights, *orphan_refusal(key), now=now)
            await self._statuses.write_weights(weights, status)
        after_seconds = self._statuses.held_back_seconds(key)
        return None if after_seconds == NEVER else after_seconds


def _judged(pod: PodView, fleet_uid: str, going: set[str]) -> PodView:
    """A pod that belongs to another object, say to an earlier fleet of this name, is on its way out:
    it holds its name, and nothing else is done with it.
    """
    foreign = pod.owner and pod.owner != fleet_uid
    return replace(pod, deleting=True) if foreign or pod.uid in going else pod
