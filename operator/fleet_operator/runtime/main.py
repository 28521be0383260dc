"""Builds everything, waits to lead, runs, and ends in order.

    start → web port → Lease → caches filled → watches and queue → stop: queue, calls, events, Lease

A process that loses the Lease ends at once with a non-zero code: whatever it still has in flight
carries an old term, which workers refuse.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable
from contextlib import AsyncExitStack

from fleet_operator.adapters.kube import KubeClient
from fleet_operator.adapters.workers import WorkerClient
from fleet_operator.api import names
from fleet_operator.errors import FleetError, NotFound, Retryable, Terminal
from fleet_operator.ports import Kube, Workers
from fleet_operator.runtime import logs, permissions, web
from fleet_operator.runtime.calls import Calls
from fleet_operator.runtime.child_watch import ChildWatch
from fleet_operator.runtime.custom_resources import NO_CRDS, CustomResources
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.fenced import FencedKube, FencedWorkers
from fleet_operator.runtime.informer import FleetKey, PodInformer
from fleet_operator.runtime.lease import Leadership
from fleet_operator.runtime.lease_thread import LeaseThread
from fleet_operator.runtime.list_watch import Read
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects
from fleet_operator.runtime.reconcile import Reconciler
from fleet_operator.runtime.recorder import Recorder
from fleet_operator.runtime.rivals import Rivals
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.statuses import Statuses
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.templates import Templates
from fleet_operator.runtime.troubles import Troubles
from fleet_operator.runtime.worker_book import WorkerBook
from fleet_operator.runtime.workqueue import WorkQueue

logger = logging.getLogger(__name__)

FLEETS_AT_ONCE = 16
SWEEP_SECONDS = 300.0
RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
STUCK_SECONDS = 600.0
"""A fleet that is due, or being worked on, for so long will not be done by this process. Requests of
a reconcile end after 15 s each, and a leader without its API server ends after 10 s."""
EXIT_LOST_LEASE = 3
EXIT_CANNOT_START = 2
_FIRST = asyncio.FIRST_COMPLETED


class Operator:
    """One operator process."""

    def __init__(
        self,
        settings: Settings,
        kube: Kube,
        worker_client: Workers,
        lease: Leadership,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self.metrics = metrics = Metrics()
        self.queue: WorkQueue[FleetKey] = WorkQueue()
        self.lease = lease
        self.epochs = Epochs(lambda: self.lease.term)
        kube = FencedKube(kube, lambda: self.lease.held)
        self.troubles = Troubles()
        self.recorder = Recorder(kube, metrics, self.troubles, instance=settings.identity)
        self.store = Store(self.queue.add)
        scopes: tuple[str | None, ...] = settings.namespaces or (None,)
        self.pods = PodInformer(kube, scopes, self.queue.add, self._note_read)
        self.book = WorkerBook()
        self.objects = Objects(kube, metrics)
        self.children = ChildWatch(
            kube, scopes, self.objects.differs, self.queue.add, self._note_read
        )
        self.resources = CustomResources(
            self._kube, self.store, settings.namespaces, self._note_read
        )
        self.calls = Calls(
            FencedWorkers(worker_client, lambda: self.lease.held),
            self.book,
            metrics,
            again=self._again,
            stale=self.epochs.note_refusal,
            is_settling=self.epochs.is_settling,
            denied=self._denied,
        )
        self.reconcile = Reconciler(
            store=self.store,
            pods=self.pods,
            book=self.book,
            calls=self.calls,
            objects=self.objects,
            statuses=Statuses(self.objects, self.recorder),
            epochs=self.epochs,
            rivals=Rivals(kube, f"{settings.lease_namespace}/{settings.lease_name}"),
            metrics=metrics,
            troubles=self.troubles,
            templates=Templates(kube, settings.default_image, metrics.writes.labels("child").inc),
            default_image=settings.default_image,
            resync_seconds=settings.resync_seconds,
            again=self._again,
        )
        self.fit = False
        self.synced = False

    async def run(self, stop: asyncio.Event) -> int:
        """Run until told to stop. Returns: the exit code."""
        async with AsyncExitStack() as stack:
            runner = await web.serve(
                self._settings.port, self.metrics, live=self._not_live, ready=self._not_ready
            )
            stack.push_async_callback(runner.cleanup)
            place = permissions.LeasePlace(
                namespace=self._settings.lease_namespace, name=self._settings.lease_name
            )
            rights = permissions.Rights(self._kube, self._settings.namespaces, place)
            if not await _first(self._check(rights), stop.wait()):
                return 0
            self.fit = True
            if not await _first(self.lease.acquire(), stop.wait()):
                return 0
            stack.push_async_callback(self.lease.release)
            self.metrics.leading.set(1)
            return await self._lead(stop)

    async def _lead(self, stop: asyncio.Event) -> int:
        # Whatever is started after kopf is waited for by kopf when it ends: ours comes before.
        holding = asyncio.create_task(self.lease.hold(), name="lease")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        tasks = [holding, stopping, asyncio.create_task(self.pods.run(), name="pods")]
        try:
            if await _first(self._fill(), asyncio.wait(tasks, return_when=_FIRST)):
                tasks.append(asyncio.create_task(self._work(), name="queue"))
                tasks.append(asyncio.create_task(self._sweep(), name="sweep"))
                tasks.append(asyncio.create_task(self._settle_terms(), name="terms"))
                tasks.append(asyncio.create_task(self.children.run(), name="children"))
                watching = asyncio.Event()
                watches = self.resources.follow(watching, lambda: take_signals(stop))
                tasks.append(asyncio.create_task(watches, name="watches"))
                await _first(watching.wait(), asyncio.wait(tasks, return_when=_FIRST))
                take_signals(stop)
            done, _ = await asyncio.wait(tasks, return_when=_FIRST)
            if stopping in done:
                logger.info("stopping")
                return 0
            if holding in done:
                logger.error("leadership is lost; ending so that nothing old is written")
                return EXIT_LOST_LEASE
            for task in done:
                logger.error("%s ended by itself", task.get_name(), exc_info=task.exception())
            return 1
        finally:
            for task in tasks:
                task.cancel()
            await self.calls.stop()
            await self.reconcile.stop()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
            await self.recorder.flush()

    async def _check(self, rights: permissions.Rights) -> None:
        """Find out whether this process could lead: a standby that could not is none.

        Errors: Terminal, with what is missing.
        """
        while True:
            try:
                await rights.check()
                await self._kube.get(f"/apis/{names.GROUP}/{names.VERSION}")
            except NotFound as error:
                raise Terminal(NO_CRDS) from error
            except Retryable as error:
                logger.warning("%s; again in %.0f s", error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _fill(self) -> None:
        """Fill the caches before anything is decided on them.

        Pods that cannot be listed end the waiting: their fleets report it, and are left alone until
        they are listed.
        """
        await self.resources.fill()
        await self.pods.tried()
        self.synced = True

    async def _work(self) -> None:
        await self.queue.run(self.reconcile, workers=FLEETS_AT_ONCE)

    async def _settle_terms(self) -> None:
        await self.epochs.settle(self.lease.confirm, self._again)

    async def _sweep(self) -> None:
        """Now and then look at everything again, and drop what is gone."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.objects.forget_written()
            self.reconcile.forget_tokens()
            self.recorder.forget_all_but(set(self.store.fleet_keys()))
            self.book.forget_all_but(set(self.pods.uids()))
            for key in self.store.fleet_keys():
                self.queue.add(key)

    def _again(self, key: FleetKey, after_seconds: float) -> None:
        self.queue.add(key, after_seconds=after_seconds)

    def _note_read(self, read: Read, error: FleetError | None) -> None:
        if self.troubles.note_read(read, error):
            for key in self.store.fleet_keys():
                if read.namespace in {None, key[0]}:
                    self.queue.add(key)

    def _denied(self, key: FleetKey) -> None:
        self.reconcile.forget_token(key)

    def _not_live(self) -> str:
        # That this is answered at all proves that the loop turns: the Lease has a thread of its own.
        if self.synced and not self.lease.held:
            return "the lease ran out"
        stuck_seconds = self.queue.stuck_seconds()
        if stuck_seconds > STUCK_SECONDS:
            return f"a fleet has been waiting for {stuck_seconds:.0f} s"
        return ""

    def _not_ready(self) -> str:
        self.metrics.queue_depth.set(self.queue.depth())
        self.metrics.queue_stuck.set(self.queue.stuck_seconds())
        if not self.fit:
            return "it is not known yet whether the API server allows what is needed"
        return "the caches are being filled" if self.lease.held and not self.synced else ""


def take_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT stop the operator."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _first(work: Awaitable[object], other: Awaitable[object]) -> bool:
    """Run two awaitables until one is done; whether it was the first."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
    return tasks[0] in done


async def run(settings: Settings) -> int:
    """Run an operator process. Returns: its exit code."""
    logs.set_up(log_format=settings.log_format, log_level=settings.log_level)
    stop = asyncio.Event()
    take_signals(stop)
    try:
        async with AsyncExitStack() as stack:
            kube, workers = await KubeClient.connect(), WorkerClient()
            for client in (kube, workers):
                stack.push_async_callback(client.close)
            lease = await LeaseThread.start(
                KubeClient.connect,
                namespace=settings.lease_namespace,
                name=settings.lease_name,
                identity=settings.identity,
            )
            stack.push_async_callback(lease.stop)
            return await Operator(settings, kube, workers, lease).run(stop)
    except Terminal as error:
        logger.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    except FleetError as error:
        logger.error("%s", error)
        return 1
