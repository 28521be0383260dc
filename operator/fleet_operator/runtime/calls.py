"""Asks workers, many at a time: for their state, and to act.

A slow or silent worker never holds up the others: callers wait for a moment, what is not done by
then goes on in the background, and its end asks for another reconcile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fleet_operator.core.actions import Admit, Fence, Pause, RemoveAdapter, Resume, WorkerCall
from fleet_operator.core.observed import PodView
from fleet_operator.ports import Addressee, WorkerAnswer, Workers
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.worker_book import WorkerBook
from fleet_worker.protocol import Epoch, PauseMode, Reason

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1024
"""Of questions, and of calls that are answered at once. Those that last (staging takes minutes)
are not counted: with a place each they would keep everybody else waiting."""
SETTLE_SECONDS = 0.25
"""How long a reconcile waits for answers; small models swap in less."""
REFUSED_SECONDS = 1.0
"""A worker that refuses a call is not asked the same again within this time."""
FOLD_SECONDS = 0.02
"""Ends of background calls within this time lead to one reconcile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is asked: the fleet's key, token, admin port and epoch."""

    key: FleetKey
    token: str
    admin_port: int
    epoch: Epoch

    def addressee(self, pod: PodView, *, instance: str = "") -> Addressee:
        """A worker of the fleet; calls, unlike questions, are for one process of it."""
        host = f"[{pod.ip}]" if pod.ip and ":" in pod.ip else pod.ip
        return Addressee(
            base_url=f"http://{host}:{self.admin_port}",
            token=self.token,
            pod_uid=pod.uid,
            instance=instance,
        )


class Calls:
    """Questions and calls in flight to all workers."""

    def __init__(
        self,
        workers: Workers,
        book: WorkerBook,
        metrics: Metrics,
        *,
        again: Callable[[FleetKey, float], None],
        stale: Callable[[FleetKey, PodView, Epoch], None],
        is_settling: Callable[[FleetKey], bool],
        denied: Callable[[FleetKey], None],
    ) -> None:
        self._workers = workers
        self._book = book
        self._metrics = metrics
        self._again = again
        self._stale = stale
        self._is_settling = is_settling
        self._denied = denied
        self._question_limit = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._call_limit = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._questions: set[asyncio.Task[None]] = set()

    async def ask(self, caller: Caller, pods: Iterable[PodView]) -> None:
        """Ask workers for their state; wait a moment for the answers."""
        tasks = [asyncio.create_task(self._question(caller, pod)) for pod in pods]
        self._questions.update(tasks)
        for task in tasks:
            task.add_done_callback(self._questions.discard)
        await self._settle(caller.key, tasks)

    async def act(
        self, caller: Caller, actions: Iterable[WorkerCall], pods: dict[str, PodView]
    ) -> bool:
        """Send calls to workers; wait a moment for the outcomes.

        Returns: whether any call was sent. Those in flight already are not sent again, and those
        that the worker has just refused not at once. A fleet one of whose workers has refused a
        call as old gets none until it is known who leads.
        """
        tasks: list[asyncio.Task[None]] = []
        if self._is_settling(caller.key):
            return False
        for action in actions:
            if self._book.call_in_flight(action.pod_uid) == action.key:
                continue
            if self._book.was_refused(action.pod_uid, action.key, since=_now() - REFUSED_SECONDS):
                continue
            task = asyncio.create_task(self._call(caller, action, pods[action.pod_uid]))
            self._book.begin_call(action.pod_uid, action.key, task)
            tasks.append(task)
        await self._settle(caller.key, tasks)
        return bool(tasks)

    async def stop(self) -> None:
        """Give up everything in flight; its end is not known, and the next leader will look."""
        tasks = [*self._questions, *self._book.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, key: FleetKey, tasks: list[asyncio.Task[None]]) -> None:
        if not tasks:
            return
        _, slow = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
        for task in slow:
            task.add_done_callback(lambda _: self._again(key, FOLD_SECONDS))

    async def _question(self, caller: Caller, pod: PodView) -> None:
        self._book.begin_question(pod, _now())
        answer = WorkerAnswer(silent=True, message="the question was given up")
        try:
            async with self._question_limit:
                answer = await self._workers.state(caller.addressee(pod))
        finally:
            self._book.end_question(pod, answer, _now())
        if answer.reason is Reason.UNAUTHORIZED:
            self._denied(caller.key)

    async def _call(self, caller: Caller, action: WorkerCall, pod: PodView) -> None:
        answer = WorkerAnswer(silent=True, message="the call was given up")
        started = _now()
        # The process that the call was decided on: its successor knows nothing of it.
        worker = caller.addressee(pod, instance=self._book.instance(pod.uid))
        try:
            async with contextlib.nullcontext() if _lasts(action) else self._call_limit:
                answer = await self._workers.call(worker, action, caller.epoch)
        finally:
            self._book.end_call(action.pod_uid, action.key, answer, _now())
        outcome = _outcome(answer)
        self._metrics.calls.labels(action.kind, outcome).inc()
        logger.log(
            logging.DEBUG if outcome == "done" else logging.WARNING,
            "%s on %s: %s",
            action.key,
            action.pod_name,
            outcome,
            extra={
                "reason": action.reason,
                "message_of_worker": answer.message,
                "seconds": round(_now() - started, 3),
            },
        )
        if answer.reason is Reason.UNAUTHORIZED:
            self._denied(caller.key)
        if answer.reason is Reason.STALE_EPOCH and answer.state and answer.state.epoch:
            self._stale(caller.key, pod, answer.state.epoch)


def _outcome(answer: WorkerAnswer) -> str:
    """For the metrics: out of a fixed list, whatever words a worker uses."""
    if answer.silent:
        return "silent"
    if answer.reason is None:
        return "done"
    return answer.reason.value if isinstance(answer.reason, Reason) else "other"


def _lasts(action: WorkerCall) -> bool:
    if isinstance(action, Fence):
        return action.drain_timeout_seconds > 0
    if isinstance(action, Pause):
        return action.mode is PauseMode.WAIT
    return not isinstance(action, Resume | Admit | RemoveAdapter)


def _now() -> float:
    return asyncio.get_running_loop().time()
