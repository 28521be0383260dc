"""One fleet: observe → plan → apply → status. The page to read first.

Level-triggered: a reconcile does not depend on what changed. `core` makes all decisions. All state is
in the cluster or in the workers, and can be read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from fleet_operator.api import names
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.problems import Defect
from fleet_operator.runtime.admin_tokens import AdminTokens
from fleet_operator.runtime.background_writes import BackgroundWrites
from fleet_operator.runtime.callers import BUSY_SECONDS, Callers
from fleet_operator.runtime.decided_writes import DecidedWrites
from fleet_operator.runtime.defect_log import DefectLog
from fleet_operator.runtime.dispatch import Caller, Dispatcher, Sent
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.foreign_fleets import ForeignFleets
from fleet_operator.runtime.known_status import NEVER
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.observer import Observer
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.pod_writer import PodWriter
from fleet_operator.runtime.problems import PODS, STATUS, Problems, status_part
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.status_parts import StatusParts
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.templates import TEMPLATE, Templates
from fleet_operator.runtime.traces import CallTrace, RolloutTraces
from fleet_operator.runtime.undecided import RECONCILE, UndecidedFleets
from fleet_operator.runtime.unowned_weights import UnownedWeights
from fleet_operator.runtime.worker_cache import WorkerCache

logger = logging.getLogger(__name__)

QUICKLY_SECONDS = 0.0


class Reconciler:
    """Brings fleets to what their objects ask for, one call of `reconcile` at a time per fleet."""

    def __init__(
        self,
        *,
        store: Store,
        pods: PodInformer,
        worker_cache: WorkerCache,
        calls: Dispatcher,
        tokens: AdminTokens,
        children: KubeChildren,
        routers: RouterObjects,
        pod_writer: PodWriter,
        statuses: StatusWriter,
        epochs: Epochs,
        foreign: ForeignFleets,
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
        self._calls = calls
        self._tokens = tokens
        self._pod_writer = pod_writer
        self._statuses = statuses
        self._epochs = epochs
        self._foreign = foreign
        self._metrics = metrics
        self._problems = problems
        self._templates = templates
        self._default_image = default_image
        self._resync_seconds = resync_seconds
        self._requeue = requeue
        self._writes = BackgroundWrites(problems, metrics, requeue)
        self._parts = StatusParts(statuses, self._writes, problems)
        self._decided = DecidedWrites(children, pod_writer, problems)
        self._defects = DefectLog(metrics)
        self._orphans = UnownedWeights()
        self._callers = Callers(
            tokens=tokens,
            epochs=epochs,
            calls=calls,
            pods=pods,
            worker_cache=worker_cache,
            writes=self._writes,
            resync_seconds=resync_seconds,
        )
        self._observer = Observer(
            foreign.own,
            store=store,
            pods=pods,
            pod_writer=pod_writer,
            worker_cache=worker_cache,
            routers=routers,
            statuses=statuses,
            epochs=epochs,
            problems=problems,
        )
        self._undecided = UndecidedFleets(
            callers=self._callers,
            calls=calls,
            observer=self._observer,
            statuses=statuses,
            parts=self._parts,
            problems=problems,
            defects=self._defects,
            resync_seconds=resync_seconds,
        )

    async def __call__(self, key: FleetKey) -> None:
        """Reconcile one fleet, and schedule the next reconcile. Raises nothing except cancellation."""
        try:
            with self._metrics.reconciles.time():
                after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - a defect in one fleet must not stop the others
            self._defects.note(key, Defect(part=RECONCILE, error=error))
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
        if await self._foreign.leave(key, record, datetime.now(UTC)):
            # The next status begins with the one that the other operator has written.
            self._statuses.forget_all_but(key, set())
            self._forget_measurements(key)
            return self._resync_seconds
        if record.spec is None or not self._pods.is_synced(key[0]):
            return self._undecided.report_undecided(key, record, datetime.now(UTC))
        caller = await self._callers.read(key, record, record.spec)
        if caller is not None:
            await self._callers.ask(caller, external=record.spec.is_external)
        now = datetime.now(UTC)
        observed = await self._with_template(key, self._observer.observe(key, record, record.spec))
        decision = decide(observed, default_image=self._default_image, now=now)
        self._defects.note_all(key, decision.defects)
        rollout = decision.rollout
        self._observer.note_decided(key, decision.weights)
        self._metrics.show_silent(key, observed)
        if caller is not None:
            caller = replace(caller, trace=self._trace(key, observed, decision, now))
        calling = asyncio.create_task(self._call(key, caller, observed, decision))
        # After the calls, and without waiting: a slow API server must not prolong a pause.
        self._writes.begin(key, self._decided.writes(key, observed, decision))
        parts = self._take_statuses(key, observed, decision)
        sent = await calling
        if not self._parts.are_left_to_the_next(key, sent):
            pin = status_part(names.FLEET_KIND, observed.name) if decision.waits_for_pin else ""
            self._parts.write(key, parts, awaited=pin)
        changing = observed.workers.where(lambda f: f.busy or not f.pod.ready)
        polled_often = changing if decision.at_rest else observed.workers
        if caller is not None:
            await self._callers.poll(caller, often={w.pod.uid for w in polled_often})
        busy = bool(changing) or not decision.at_rest
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
        waits += [self._statuses.held_back_seconds(key), self._observer.turn_in_seconds(key)]
        return min(waits)

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
        """Send the calls to workers. Waits up to `ANSWER_WAIT_SECONDS`."""
        if caller is None:
            return Sent.NOTHING
        if decision.is_planned:
            goal = decision.rollout.step.goal
            epoch = self._epochs.for_step(key, goal, admits=decision.admits)
            caller = replace(caller, epoch=epoch)
        views = {w.pod.uid: w.pod for w in observed.workers}
        return await self._calls.act(caller, decision.worker_calls, views)

    def _trace(
        self, key: FleetKey, observed: FleetObserved, decision: Decision, now: datetime
    ) -> CallTrace | None:
        if self._traces is None:
            return None
        return self._traces.update(key, observed.all_weights, decision.weights, now=now)

    def _take_statuses(
        self, key: FleetKey, observed: FleetObserved, decision: Decision
    ) -> dict[str, str]:
        """Pass the statuses to the writer. Returns: uids by part."""
        for each in observed.all_weights:
            if isinstance(each, WeightsView):
                status = decision.weights[each.uid]
                self._metrics.count_rollouts(key, each.spec.adapter, each.status, status)
        parts = self._parts.take_fleet(key, observed.uid, observed.status, decision.fleet)
        parts |= self._parts.take_weights(key, observed.all_weights, decision.weights)
        self._problems.forget_all_but(key, STATUS, set(parts))
        return parts

    async def _stand_still(self, key: FleetKey) -> None:
        record = self._store.fleet(key)
        if record is not None and record.spec is not None and key not in self._foreign:
            await self._undecided.keep(key, record, record.spec, datetime.now(UTC))

    def _forget_measurements(self, key: FleetKey) -> None:
        """Forget what this process has measured and shown of a fleet."""
        self._metrics.forget_fleet(key)
        self._observer.forget(key)
        if self._traces is not None:
            self._traces.forget(key)

    async def _refuse_orphans(self, key: FleetKey) -> float | None:
        """Report on WeightVersions without a fleet, and forget the fleet."""
        orphans, beyond = self._observer.looked_at(key), self._observer.beyond(key)
        self._statuses.forget_all_but(key, {w.uid for w in (*orphans, *beyond)})
        self._forget_measurements(key)
        self._problems.forget_fleet(key)
        for part in (
            *(self._tokens, self._calls, self._defects, self._parts, self._foreign),
            *(self._pod_writer, self._templates, self._epochs),
        ):
            part.forget(key)
        seconds = asyncio.get_running_loop().time()
        now = datetime.now(UTC)
        made, left_seconds = self._orphans.update(key, orphans, seconds, beyond=beyond, now=now)
        self._parts.write(key, self._parts.take_weights(key, (*orphans, *beyond), made))
        held_back_seconds = self._statuses.held_back_seconds(key)
        waits = (held_back_seconds, self._observer.turn_in_seconds(key))
        after_seconds = min(*waits, NEVER if left_seconds is None else left_seconds)
        return None if after_seconds == NEVER else after_seconds
