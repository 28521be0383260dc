"""Sends reads and calls to many workers at once.

A slow or silent worker never delays the others. A reconcile waits a short time. Requests that take
longer continue in the background, and their end requests another reconcile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from fleet_operator.core.actions import Apply, LoraCall, Pause, WorkerCall
from fleet_operator.core.work import Work
from fleet_operator.core.worker_view import PodView
from fleet_operator.ports import NOT_LEADING, Addressee, WorkerAnswer, Workers
from fleet_operator.runtime.in_flight import (
    ConcurrencyLimit,
    InBackground,
    RequestBatch,
    RequestInFlight,
)
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import SILENT, Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.session import FleetSession
from fleet_operator.runtime.traces import CallTrace
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_operator.time_shares import TimeShares
from fleet_worker.protocol import Epoch, Reason, WantedRequest
from rlfleet_resources import names

logger = logging.getLogger(__name__)

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
DONE = "done"
NO_EFFECT = "NoEffect"
"""The outcomes of calls that were answered with success."""
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
    """A fleet, and the token, admin port, epoch and trace of its calls.

    Fields:
        adapters: of its spec.
        wanted: what reads tell the workers; None for reads that tell nothing.
        news: what is new in it for a worker that has heard something else (`WantedRequest.news`).
    """

    session: FleetSession
    token: str
    admin_port: int
    epoch: Epoch
    adapters: int = 0
    trace: CallTrace | None = None
    wanted: WantedRequest | None = None
    news: tuple[object, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.wanted is not None:
            object.__setattr__(self, "news", self.wanted.news)

    def addressee(self, pod: PodView, *, instance: str = "") -> Addressee:
        """The address of a worker. Calls, unlike reads, are for one process of the pod."""
        return Addressee(
            base_url=names.address_url(pod.ip, self.admin_port),
            token=self.token,
            pod_uid=pod.uid,
            instance=instance,
            namespace=self.session.key[0],
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
        shares: TimeShares,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`leads`: whether this process is the leader. If it is not, no call is sent."""
        self._workers = workers
        self._worker_cache = worker_cache
        self._metrics = metrics
        self._requeue = requeue
        self._shares = shares
        self._leads = leads
        self._read_limit = ConcurrencyLimit(MAX_IN_FLIGHT)
        self._call_limit = ConcurrencyLimit(MAX_IN_FLIGHT)
        self._flights: set[RequestInFlight] = set()

    async def ask(
        self, caller: Caller, pods: Iterable[PodView], *, wait_seconds: float = ANSWER_WAIT_SECONDS
    ) -> None:
        """Read the workers' states. Waits up to `wait_seconds` for the answers."""
        left = caller.session.reads
        asked = RequestBatch(partial(self._ended, caller.session.key, left))
        for number, pod in enumerate(pods, start=1):
            self._read(caller, pod, asked)
            if number % SENT_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._wait_for_ends(asked, left, wait_seconds)

    async def act(
        self, caller: Caller, actions: Collection[WorkerCall], pods: dict[str, PodView]
    ) -> Sent:
        """Send calls to workers. Waits up to `ANSWER_WAIT_SECONDS` for the outcomes.

        A call in flight is not sent again, and one whose effect was not seen only after a wait
        (`CallRecord`). A fleet gets no calls after `StaleEpoch` until the Lease was read.

        `actions`: all calls of the decision. `pods`: all workers of the fleet by uid.
        """
        session = caller.session
        session.call_defects.update(lambda: _kinds(actions, pods), _now())
        if session.epochs.is_term_pending:
            return Sent.NOTHING
        left, sent = session.calls, Sent.NOTHING
        called = RequestBatch(partial(self._ended, session.key, left))
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
        lasting = await self._wait_for_ends(called, left, ANSWER_WAIT_SECONDS)
        return Sent.LASTING if lasting else sent

    async def stop(self) -> None:
        """Cancel everything in flight. The next leader reads what took effect."""
        flights = list(self._flights)
        for flight in flights:
            flight.cancel()
        answers = [f.answer for f in flights if f.answer is not None]
        await asyncio.gather(*answers, return_exceptions=True)

    @staticmethod
    async def _wait_for_ends(sent: RequestBatch, left: InBackground, seconds: float) -> int:
        """Wait for the requests of a batch, at most for this time.

        Returns: how many requests continue in the background, which `left` counts.
        """
        number = await sent.wait_for_ends(seconds)
        left.number += number
        return number

    def _ended(self, key: FleetKey, left: InBackground, may_change_decision: bool) -> None:  # noqa: FBT001 - the only flag of a callback
        left.number -= 1
        if may_change_decision:
            self._requeue(key, fold_seconds(left) if left.number else 0)

    def _read(self, caller: Caller, pod: PodView, asked: RequestBatch) -> None:
        self._worker_cache.begin_read(pod, _now())
        # Partials instead of closures: there are thousands, and the garbage collector scans fewer objects.
        send = partial(self._workers.state, caller.addressee(pod))
        wanted, instance = caller.wanted, self._worker_cache.instance(pod.uid)
        tells = wanted is not None and (wanted.wanted or self._worker_cache.hears(pod.uid))
        if wanted is not None and tells and instance:
            send = partial(self._workers.tell, caller.addressee(pod, instance=instance), wanted)
            self._worker_cache.note_told(pod, caller.news)
        ended = partial(self._read_ended, caller, pod, asked)
        asked.add()
        failed = partial(_has_failed, caller.session, _STATE)
        flight = RequestInFlight(
            caller.session.key, send, ended, self._flights, self._read_limit, failed=failed
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
                self._note(caller.session, _STATE, pod, answer)
        finally:
            asked.end(may_change_decision=may_change_decision)

    def _call(
        self, caller: Caller, work: Work, action: WorkerCall, pod: PodView, called: RequestBatch
    ) -> None:
        # For the process that the decision was made on, not for its successor.
        worker = caller.addressee(pod, instance=self._worker_cache.instance(pod.uid))
        send = partial(self._send, worker, action, caller.epoch)
        now = _now()
        ended = partial(self._call_ended, caller, action, pod, called, now)
        failed = partial(_has_failed, caller.session, action.kind)
        limit = None if action.lasts else self._call_limit
        key = caller.session.key
        flight = RequestInFlight(key, send, ended, self._flights, limit, failed=failed)
        self._worker_cache.begin_call(action.pod_uid, work, flight, now, epoch=caller.epoch)
        if isinstance(action, Pause | Apply):
            caller.session.pauses.begin(pod.uid, action.lease_seconds, now)
        called.add()
        flight.begin()

    def _send(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> Awaitable[WorkerAnswer]:
        """Send a call, if this process is the leader. A process that was frozen continues where it stopped, and
        would send outdated calls before it notices that leadership is lost. Epochs stop those that were sent.
        """
        if self._leads():
            return self._workers.call(worker, action, epoch)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(WorkerAnswer(silent=True, message=NOT_LEADING))
        return answer

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
                session = caller.session
                self._note(session, action.kind, pod, answer)
                self._note_outcome(caller, action, answer, missing, now - began_at)
        finally:
            called.end()

    def _note(self, session: FleetSession, kind: str, pod: PodView, answer: WorkerAnswer) -> None:
        """Note what any answer says about the fleet."""
        now = _now()
        self._shares.note(session.key[0], answer.cost_seconds, now)
        if answer.state is not None:
            session.pauses.note(pod.uid, answer.state, now)
        session.call_defects.end(kind)
        if answer.reason is Reason.UNAUTHORIZED:
            session.token.note_stale()
        if answer.reason is Reason.STALE_EPOCH and answer.state and answer.state.epoch:
            session.epochs.note_refusal(pod, answer.state.epoch)

    def _note_outcome(
        self, caller: Caller, action: WorkerCall, answer: WorkerAnswer, missing: str, seconds: float
    ) -> None:
        """Count, trace and log the end of a call.

        Args:
            caller: The fleet.
            action: The call.
            answer: Its answer.
            missing: The effect that an answer with success does not show; empty if it does.
            seconds: How long the call took.
        """
        outcome = NO_EFFECT if missing else _outcome(answer)
        self._metrics.count_call(action.kind, outcome, seconds)
        if caller.trace is not None:
            caller.trace.ended(action, outcome, seconds)
        late, pod = caller.session.late_calls, action.pod_name
        if outcome == Reason.VERSION_MISMATCH:
            is_wrong = late.is_new_fault(pod, action.work)
        else:
            late.end(pod)
            is_wrong = outcome != DONE
        level = logging.WARNING if is_wrong else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s on %s: %s",
                action.work,
                action.pod_name,
                outcome,
                extra=fleet_fields(
                    "call",
                    caller.session.key,
                    pod=action.pod_name,
                    operation=action.kind,
                    version=action.version or None,
                    run_id=action.run_id,
                    adapter=action.adapter if isinstance(action, LoraCall) else None,
                    outcome=outcome,
                    reason=action.reason,
                    message_of_worker=missing or answer.message,
                    seconds=round(seconds, 3),
                ),
            )


def _has_failed(session: FleetSession, kind: str, error: Exception) -> None:
    session.call_defects.begin(kind, error, _now())


def _outcome(answer: WorkerAnswer) -> str:
    """The outcome as a metric label, from a fixed list."""
    if answer.silent:
        return SILENT
    if answer.reason is None:
        return DONE
    return answer.reason.value if isinstance(answer.reason, Reason) else "other"


def _kinds(actions: Iterable[WorkerCall], pods: Collection[str]) -> set[str]:
    """The kinds of requests that a fleet's workers get. All of them are read."""
    return {action.kind for action in actions} | ({_STATE} if pods else set())


def fold_seconds(left: InBackground) -> float:
    """How long to collect more outcomes before the next reconcile of a fleet."""
    return FOLD_SECONDS + FOLD_SECONDS_EACH * left.number


def _now() -> float:
    return asyncio.get_running_loop().time()
