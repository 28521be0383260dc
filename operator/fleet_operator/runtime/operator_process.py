"""The operator's process: build its parts, wait to lead, reconcile, and end in order.

    start → own ports → Lease → caches filled → watches and queue → stop: queue, calls, events, Lease

A process that loses the Lease ends at once with a non-zero code. Its calls in flight carry an old term,
which workers refuse.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack

from fleet_operator.errors import Terminal
from fleet_operator.ports import NOT_LEADING, HookedKube, Json, KubeHooks, Leadership, Workers
from fleet_operator.runtime import health, permissions
from fleet_operator.runtime.child_watch import ChildWatch
from fleet_operator.runtime.custom_resources import CustomResources
from fleet_operator.runtime.dispatch import Dispatcher
from fleet_operator.runtime.epochs import raise_terms
from fleet_operator.runtime.fleet_queue import FleetQueue
from fleet_operator.runtime.foreign_fleets import ForeignFleets
from fleet_operator.runtime.heartbeats import Heartbeats
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.other_operators import OtherOperators
from fleet_operator.runtime.pod_informer import FleetKey, PodInformer
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.reads import Read
from fleet_operator.runtime.reconcile import Reconciler
from fleet_operator.runtime.restarts import Part, keep_running
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.served_schemas import ServedSchemas
from fleet_operator.runtime.session import Sessions
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_metrics import Shown, ShownWeights
from fleet_operator.runtime.status_writer import adapter_of
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.traces import RolloutTraces
from fleet_operator.runtime.unread_objects import UnreadObjects
from fleet_operator.runtime.worker_cache import WorkerCache

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0
STOP_SECONDS = 5.0
STUCK_SECONDS = 600.0
"""A process that reconciles none of the due fleets for this long is stuck, and `/livez` fails. Requests of
a reconcile end after 15 s each, and a leader without its API server ends after 10 s."""
EXIT_LOST_LEASE = 3
_FIRST = asyncio.FIRST_COMPLETED


def take_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT stop the operator."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


class Operator:
    """One operator process."""

    def __init__(
        self,
        settings: Settings,
        kube: HookedKube,
        worker_client: Workers,
        lease: Leadership,
        traces: RolloutTraces | None = None,
    ) -> None:
        self._settings = settings
        operator = f"{settings.lease_namespace}/{settings.lease_name}"
        self.metrics = metrics = Metrics(
            operator, namespaces=settings.namespaces, names_fleets=settings.fleet_metrics
        )
        self._kube = kube
        self.lease = lease
        kube.hooks = KubeHooks(before_write=self._check_leading, after=metrics.count_request)
        self.queue = FleetQueue(metrics.count_wait, self._deadline)
        unread = UnreadObjects(self.queue.add)
        self.problems = Problems(unread=unread)
        self.schemas = ServedSchemas(kube, self._note_schemas)
        self.sessions = Sessions(
            kube,
            metrics,
            self.problems,
            instance=settings.identity,
            term=lambda: self.lease.term,
            requeue=self._requeue,
            default_image=settings.default_image,
            schemas=self.schemas,
        )
        self.store = Store(self.queue.add)
        scopes: tuple[str | None, ...] = settings.namespaces or (None,)
        self.pods = PodInformer(kube, scopes, self.queue.add, self._note_read, unread)
        self.worker_cache = WorkerCache()
        routers = RouterObjects()
        self.child_watch = ChildWatch(
            kube, scopes, self._differs, self.queue.add, self._note_read, unread, routers
        )
        self.resources = CustomResources(
            kube, self.store, settings.namespaces, self._note_read, self.queue.shares
        )
        self.heartbeats = Heartbeats(kube, operator, self.sessions)
        metrics.show_statuses(self._shown, self.store.replicas_of)
        metrics.left_to_others.set_function(self._left_to_others)
        self.calls = Dispatcher(
            worker_client,
            self.worker_cache,
            metrics,
            requeue=self._requeue,
            shares=self.queue.shares,
            leads=lambda: self.lease.is_leader,
        )
        self.reconcile = Reconciler(
            store=self.store,
            sessions=self.sessions,
            pods=self.pods,
            worker_cache=self.worker_cache,
            calls=self.calls,
            routers=routers,
            foreign=ForeignFleets(OtherOperators(kube, operator), self.store, self.sessions),
            metrics=metrics,
            default_image=settings.default_image,
            resync_seconds=settings.resync_seconds,
            requeue=self._requeue,
            traces=traces,
        )
        self.fit = False
        self.synced = False

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set. Returns: the exit code."""
        async with AsyncExitStack() as stack:
            probes = await health.serve_probes(
                self._settings.probe_port,
                live=self._not_live,
                ready=self._not_ready,
                warning=self.schemas.describe,
            )
            stack.push_async_callback(probes.cleanup)
            page = await health.serve_metrics(self._settings.metrics_port, self.metrics)
            stack.push_async_callback(page.cleanup)
            rights = permissions.Permissions.of(self._kube, self._settings)
            if not await _first(rights.wait(), stop.wait()):
                return 0
            self.fit = True
            if not await _first(self.lease.acquire(), stop.wait()):
                return 0
            stack.push_async_callback(self.lease.release)
            self.metrics.leading.set(1)
            return await self._lead(stop)

    async def _lead(self, stop: asyncio.Event) -> int:
        # At its end, kopf waits for all tasks that were started after it. So it starts last.
        holding = asyncio.create_task(self.lease.keep_renewing(), name="lease")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        tasks = [holding, stopping, self._begin("pods", self.pods.run)]
        try:
            if await _first(self._fill(), asyncio.wait(tasks, return_when=_FIRST)):
                watching, resources = asyncio.Event(), self.resources
                parts = {
                    "queue": self._work,
                    "sweep": self._sweep,
                    "terms": self._raise_terms,
                    "children": self.child_watch.run,
                    "schemas": self.schemas.run,
                    "heartbeats": self.heartbeats.run,
                    "gone": resources.keep_forgetting,
                    "watches": lambda: resources.follow(watching, lambda: take_signals(stop)),
                }
                tasks += [self._begin(name, part) for name, part in parts.items()]
                await _first(watching.wait(), asyncio.wait(tasks, return_when=_FIRST))
                take_signals(stop)
            done, _ = await asyncio.wait(tasks, return_when=_FIRST)
            if stopping in done:
                logger.info("stopping")
                return 0
            logger.error(
                "leadership is lost; this process ends, so that it writes nothing outdated"
            )
            return EXIT_LOST_LEASE
        finally:
            for task in tasks:
                task.cancel()
            await self.calls.stop()
            await self.sessions.writing.stop()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
            await self.sessions.events.flush()

    async def _fill(self) -> None:
        """Fill the caches before the first decision.

        Pods that cannot be listed do not block it. Their fleets report it, and their workers are left
        alone until the list succeeds.
        """
        await self.schemas.look()
        await self.resources.fill()
        await self.pods.tried()
        self.synced = True

    async def _work(self) -> None:
        await self.queue.run(self.reconcile)

    async def _raise_terms(self) -> None:
        await raise_terms(
            self.sessions.refused,
            lambda: (session.epochs for session in self.sessions),
            self.lease.confirm,
            self._requeue,
        )

    async def _sweep(self) -> None:
        """Reconcile every fleet from time to time, and forget objects that are gone."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for session in self.sessions:
                session.children.forget_written()
                session.token.note_stale()
                session.events.post_waiting()
                self.queue.add(session.key)  # also without a fleet
            self.worker_cache.forget_all_but(set(self.pods.uids()))
            self._requeue_all(None)

    def _requeue(self, key: FleetKey, after_seconds: float) -> None:
        self.queue.add(key, after_seconds=after_seconds)

    def _begin(self, name: str, part: Part) -> asyncio.Task[None]:
        return asyncio.create_task(keep_running(name, part, self._note_part), name=name)

    def _note_part(self, part: str, error: Exception | None) -> None:
        if self.problems.note_part(part, error):
            self._requeue_all(None)

    def _note_read(self, read: Read, error: Exception | None) -> None:
        if self.problems.note_read(read, error):
            self._requeue_all(read.namespace)

    def _requeue_all(self, namespace: str | None) -> None:
        for key in self.store.fleet_keys():
            if namespace in {None, key[0]}:
                self.queue.add(key)

    def _note_schemas(self) -> None:
        self.metrics.show_missing(self.schemas.missing)
        self.problems.of_all = self.schemas.problem
        for session in self.sessions:
            session.statuses.write_again()
        self._requeue_all(None)

    def _check_leading(self, path: str) -> None:
        """A process that was frozen continues where it stopped, and would write outdated decisions before it
        notices that leadership is lost. resourceVersions stop the writes that were sent already.

        Errors: Terminal for every write while not leading. A review of permissions writes nothing.
        """
        if not self.lease.is_leader and path != permissions.REVIEWS:
            raise Terminal(NOT_LEADING)

    def _deadline(self, key: FleetKey, now: float) -> float | None:
        session = self.sessions.find(key)
        return None if session is None else session.pauses.deadline(now)

    def _differs(self, key: FleetKey, path: str, found: Json | None) -> bool:
        session = self.sessions.find(key)
        return session is not None and session.children.differs(path, found)

    def _shown(self) -> Iterator[Shown]:
        for session in self.sessions:
            yield from session.statuses.shown()
        for key, weights in self.store.unowned():
            if self.sessions.find(key) is None:
                yield ShownWeights(key, weights.name, adapter_of(weights), weights.status)

    def _left_to_others(self) -> int:
        return sum(session.driver is not None for session in self.sessions)

    def _not_live(self) -> str:
        # An answer proves that the loop runs. The Lease has a thread of its own.
        if self.synced and not self.lease.is_leader:
            return "the Lease has expired"
        stuck_seconds = self.queue.stuck_seconds()
        if stuck_seconds > STUCK_SECONDS:
            return f"a fleet has been waiting for {stuck_seconds:.0f} s"
        return ""

    def _not_ready(self) -> str:
        self.metrics.queue_depth.set(self.queue.depth())
        self.metrics.queue_stuck.set(self.queue.stuck_seconds())
        if not self.fit:
            return "the operator's permissions are not checked yet"
        return "the caches are not filled yet" if self.lease.is_leader and not self.synced else ""


async def _first(work: Awaitable[object], other: Awaitable[object]) -> bool:
    """Run two awaitables until one is done. Returns: whether the first one is done."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
    return tasks[0] in done
