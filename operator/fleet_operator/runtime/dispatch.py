"""Sends reads and calls to many workers at once.

A slow or silent worker never delays the others. A reconcile waits a short time. Requests that take
longer continue in the background, and their end requests another reconcile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from fleet_operator.api import names
from fleet_operator.core.actions import Apply, Pause, WorkerCall
from fleet_operator.core.work import Work
from fleet_operator.core.worker_view import PodView
from fleet_operator.ports import Addressee, WorkerAnswer, Workers
from fleet_operator.runtime.call_defects import CallDefects
from fleet_operator.runtime.call_outcomes import CallEnd, note_outcome
from fleet_operator.runtime.in_flight import ConcurrencyLimit, RequestBatch, RequestInFlight
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pauses import Pauses
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.time_shares import TimeShares
from fleet_operator.runtime.traces import CallTrace
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_worker.protocol import Epoch, Reason

MAX_IN_FLIGHT = 1024
"""Limit of reads, and of calls that end at once. Long calls do not count: staging takes minutes, and would
keep the others waiting."""
SENT_AT_ONCE = 500
"""Requests that are sent before the event loop gets a turn: 10,000 would stop it for a second. Portions of
200 prolonged barriers of 256 workers."""
ANSWER_WAIT_SECONDS = 0.25
"""How long a reconcile waits for answers. Small models swap in less."""
FOLD_SECONDS = 0.02
"""Ends of background calls within this time lead to one reconcile."""
FOLD_SECONDS_EACH = 0.0002
"""Additional time for each call of the fleet in flight. A reconcile costs time in proportion to the fleet's
workers, and most reconciles in a barrier find nothing to do. The last answer does not wait."""
_STATE = "state"
"""The kind of a read, among those of calls."""
_READ_CANCELLED = WorkerAnswer(silent=True, message="the state read was cancelled")
_CALL_CANCELLED = WorkerAnswer(silent=True, message="the call was cancelled")


class Sent(IntEnum):
    """The outcome of a decision's calls within `ANSWER_WAIT_SECONDS`."""

    NOTHING = 0
    ENDED = 1
    LASTING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A fleet's key, and the token, admin port, epoch and trace of its calls. `adapters`: of its spec."""

    key: FleetKey
    token: str
    admin_port: int
    epoch: Epoch
    adapters: int = 0
    trace: CallTrace | None = None

    def addressee(self, pod: PodView, *, instance: str = "") -> Addressee:
        """The address of a worker. Calls, unlike reads, are for one process of the pod."""
        return Addressee(
            base_url=names.address_url(pod.ip, self.admin_port),
            token=self.token,
            pod_uid=pod.uid,
            instance=instance,
            namespace=self.key[0],
            adapters=self.adapters,
        )


class Dispatcher:
    """Reads and calls in flight to all workers."""

    def __init__(
        self,
        workers: Workers,
        worker_cache: WorkerCache,
        metrics: Metrics,
        *,
        requeue: Callable[[FleetKey, float], None],
        pauses: Pauses,
        shares: TimeShares,
        stale: Callable[[FleetKey, PodView, Epoch], None],
        is_term_pending: Callable[[FleetKey], bool],
        denied: Callable[[FleetKey], None],
        defective: Callable[[FleetKey, str, Exception | None], None],
    ) -> None:
        """Args:
        pauses: Notes when the workers' pauses end.
        shares: Notes the time that answers cost.
        defective: Notes that sending a kind of request raised, or has worked again (None).
        """
        self._workers = workers
        self._worker_cache = worker_cache
        self._metrics = metrics
        self._requeue = requeue
        self._pauses = pauses
        self._shares = shares
        self._stale = stale
        self._is_term_pending = is_term_pending
        self._denied = denied
        self._defects = CallDefects(defective)
        self._read_limit = ConcurrencyLimit(MAX_IN_FLIGHT)
        self._call_limit = ConcurrencyLimit(MAX_IN_FLIGHT)
        self._flights: set[RequestInFlight] = set()
        self._reads_left: Counter[FleetKey] = Counter()
        """Reads in the background."""
        self._calls_left: Counter[FleetKey] = Counter()
        """Calls in the background."""

    async def ask(
        self, caller: Caller, pods: Iterable[PodView], *, wait_seconds: float = ANSWER_WAIT_SECONDS
    ) -> None:
        """Read the workers' states. Waits up to `wait_seconds` for the answers."""
        left = self._reads_left
        asked = RequestBatch(partial(self._ended, caller.key, left))
        for number, pod in enumerate(pods, start=1):
            self._read(caller, pod, asked)
            if number % SENT_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._wait_for_ends(caller.key, asked, left, wait_seconds)

    async def act(
        self, caller: Caller, actions: Collection[WorkerCall], pods: dict[str, PodView]
    ) -> Sent:
        """Send calls to workers. Waits up to `ANSWER_WAIT_SECONDS` for the outcomes.

        A call in flight is not sent again, and one whose effect was not seen only after a wait
        (`CallRecord`). A fleet gets no calls after `StaleEpoch` until the Lease was read.

        `actions`: all calls of the decision. `pods`: all workers of the fleet by uid.
        """
        self._defects.update(caller.key, lambda: _kinds(actions, pods), _now())
        if self._is_term_pending(caller.key):
            return Sent.NOTHING
        left, sent = self._calls_left, Sent.NOTHING
        called = RequestBatch(partial(self._ended, caller.key, left))
        now = _now()
        for number, action in enumerate(actions):
            if number and number % SENT_AT_ONCE == 0:
                await asyncio.sleep(0)
            work, uid = action.work, action.pod_uid
            if self._worker_cache.call_in_flight(uid) == work:
                continue
            if self._worker_cache.must_wait(uid, work, now):
                continue
            sent = Sent.ENDED
            self._call(caller, work, action, pods[uid], called)
        lasting = await self._wait_for_ends(caller.key, called, left, ANSWER_WAIT_SECONDS)
        return Sent.LASTING if lasting else sent

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._defects.forget(key)
        self._pauses.forget(key)

    async def stop(self) -> None:
        """Cancel everything in flight. The next leader reads what took effect."""
        flights = list(self._flights)
        for flight in flights:
            flight.cancel()
        answers = [f.answer for f in flights if f.answer is not None]
        await asyncio.gather(*answers, return_exceptions=True)

    @staticmethod
    async def _wait_for_ends(
        key: FleetKey, sent: RequestBatch, left: Counter[FleetKey], seconds: float
    ) -> int:
        """Wait for the requests of a batch, at most for this time.

        Returns: how many requests continue in the background, which `left` counts.
        """
        number = await sent.wait_for_ends(seconds)
        if number:
            left[key] += number
        return number

    def _ended(self, key: FleetKey, left: Counter[FleetKey], may_change_decision: bool) -> None:  # noqa: FBT001 - the only flag of a callback
        left[key] -= 1
        is_last = not left[key]
        if is_last:
            del left[key]
        if may_change_decision:
            self._requeue(key, 0 if is_last else _fold_seconds(left[key]))

    def fold_seconds(self, key: FleetKey) -> float:
        """How long to collect more outcomes of calls before the next reconcile of the fleet."""
        return _fold_seconds(self._calls_left[key])

    def _read(self, caller: Caller, pod: PodView, asked: RequestBatch) -> None:
        self._worker_cache.begin_read(pod, _now())
        # Partials instead of closures: there are thousands, and the garbage collector scans fewer objects.
        send = partial(self._workers.state, caller.addressee(pod))
        ended = partial(self._read_ended, caller, pod, asked)
        asked.add()
        failed = partial(self._has_failed, caller.key, _STATE)
        flight = RequestInFlight(
            caller.key, send, ended, self._flights, self._read_limit, failed=failed
        )
        flight.begin()

    def _read_ended(
        self, caller: Caller, pod: PodView, asked: RequestBatch, answer: WorkerAnswer | None
    ) -> None:
        may_change_decision = True
        try:
            may_change_decision = self._worker_cache.end_read(
                pod, answer or _READ_CANCELLED, _now(), term=caller.epoch.term
            )
            if answer is not None:
                self._note(caller.key, pod.uid, answer)
                self._defects.end(caller.key, _STATE)
                if answer.reason is Reason.UNAUTHORIZED:
                    self._denied(caller.key)
        finally:
            asked.end(may_change_decision=may_change_decision)

    def _call(
        self, caller: Caller, work: Work, action: WorkerCall, pod: PodView, called: RequestBatch
    ) -> None:
        # For the process that the decision was made on, not for its successor.
        worker = caller.addressee(pod, instance=self._worker_cache.instance(pod.uid))
        send = partial(self._workers.call, worker, action, caller.epoch)
        now = _now()
        ended = partial(self._call_ended, caller, action, pod, called, now)
        failed = partial(self._has_failed, caller.key, action.kind)
        limit = None if action.lasts else self._call_limit
        flight = RequestInFlight(caller.key, send, ended, self._flights, limit, failed=failed)
        self._worker_cache.begin_call(action.pod_uid, work, flight, now, epoch=caller.epoch)
        if isinstance(action, Pause | Apply):
            self._pauses.begin(caller.key, pod.uid, action.lease_seconds, now)
        called.add()
        flight.begin()

    def _call_ended(
        self,
        caller: Caller,
        action: WorkerCall,
        pod: PodView,
        called: RequestBatch,
        began_at: float,
        answer: WorkerAnswer | None,
    ) -> None:
        try:
            now = _now()
            missing = self._worker_cache.end_call(action, answer or _CALL_CANCELLED, now)
            if answer is not None:
                self._note(caller.key, pod.uid, answer)
                self._defects.end(caller.key, action.kind)
                end = CallEnd(action, answer, missing, now - began_at)
                note_outcome(self._metrics, caller.key, caller.trace, end)
                self._pass_on(caller, pod, answer)
        finally:
            called.end()

    def _has_failed(self, key: FleetKey, kind: str, error: Exception) -> None:
        self._defects.begin(key, kind, error, _now())

    def _note(self, key: FleetKey, uid: str, answer: WorkerAnswer) -> None:
        now = _now()
        self._shares.note(key[0], answer.cost_seconds, now)
        if answer.state is not None:
            self._pauses.note(key, uid, answer.state, now)

    def _pass_on(self, caller: Caller, pod: PodView, answer: WorkerAnswer) -> None:
        """Report outcomes that concern the whole fleet."""
        if answer.reason is Reason.UNAUTHORIZED:
            self._denied(caller.key)
        if answer.reason is Reason.STALE_EPOCH and answer.state and answer.state.epoch:
            self._stale(caller.key, pod, answer.state.epoch)


def _kinds(actions: Iterable[WorkerCall], pods: Collection[str]) -> set[str]:
    """The kinds of requests that a fleet's workers get. All of them are read."""
    return {action.kind for action in actions} | ({_STATE} if pods else set())


def _fold_seconds(left: int) -> float:
    return FOLD_SECONDS + FOLD_SECONDS_EACH * left


def _now() -> float:
    return asyncio.get_running_loop().time()
