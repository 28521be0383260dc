"""One operator process in the simulation: what it knows, and what it is about to do.

It plays the runtime: what workers said last, calls in flight, statuses as computed, an epoch. It
decides with the real `decide`; the simulator carries its actions out, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from functools import wraps
from typing import Any

from tests.model.desired import NO_STATUS, Asked, Desired
from tests.model.fake_pods import at, judged
from tests.model.fake_revisions import at_once
from tests.model.fake_state import Ticket, kind_of
from tests.model.fake_worker import FakeWorker

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core import dropped_pins
from fleet_operator.core.actions import Admit, WorkerCall
from fleet_operator.core.admissions import may_open_late
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.core.manifests import pods, revisions
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.pod_actions import PodAction
from fleet_operator.core.work import COMPARISONS, Compared, Ended, Work
from fleet_operator.core.worker_view import PodView, WorkerView, ended_at
from fleet_operator.errors import FleetError
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.call_record import CallRecord
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.resource_versions import KnownVersion, is_later
from fleet_operator.runtime.rollout_timers import RolloutTimers
from fleet_operator.runtime.templates import Templates
from fleet_operator.runtime.unobserved_writes import UnobservedWrites
from fleet_worker.protocol import Epoch, Reason, WorkerState
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import WeightsStatus

IMAGE = "image"
KEY = ("rl", "policy")


def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, computed once for every spec (measured: a third of a simulation's time)."""
    known: dict[tuple[Any, ...], tuple[FleetSpec, Any]] = {}

    @wraps(function)
    def remembered(observed: FleetObserved, *rest: str) -> Any:
        whose = (observed.name, observed.namespace, observed.uid)
        key = (id(observed.spec), *whose, *rest)
        if key not in known:
            known[key] = (observed.spec, function(observed, *rest))
        return known[key][1]

    remembered.cache_clear = known.clear  # as that of `functools.cache`
    return remembered


SELDOM_SECONDS = 8.0


@contextmanager
def _room_for(pins: int | None) -> Iterator[None]:
    """A status holds this number of pins meanwhile, and half of it for adapters: a short history would never
    drop one of more.
    """
    real = dropped_pins.MAX_PINNED, dropped_pins.MAX_PINNED_ADAPTERS
    if pins is not None:
        dropped_pins.MAX_PINNED, dropped_pins.MAX_PINNED_ADAPTERS = pins, pins // 2
    try:
        yield
    finally:
        dropped_pins.MAX_PINNED, dropped_pins.MAX_PINNED_ADAPTERS = real


revisions.revision_of = _remembered(revisions.revision_of)
pods.template_of = _remembered(pods.template_of)


@dataclass(frozen=True)
class WriteFleet:
    """The last computed status, on its way to the API server."""


@dataclass(frozen=True)
class WriteWeights:
    """A status on its way to the API server."""

    uid: str
    status: WeightsStatus


@dataclass(frozen=True)
class WriteApplied:
    """The ConfigMap from which restarting workers begin."""

    applied: Checkpoint


Doing = WorkerCall | PodAction | WriteFleet | WriteWeights | WriteApplied


@dataclass
class Flight:
    """A call in flight: when it left, when it gets there, and when its answer comes back (None: never).

    `ticket` is the worker's, once it has it; `state` the answer, once it is on its way.
    """

    action: WorkerCall
    epoch: Epoch
    sent_at: float
    arrives_at: float
    answer_seconds: float | None
    given_up_at: float
    restarts: int
    ticket: Ticket | None = None
    state: WorkerState | None = None
    back_at: float | None = None

    def is_reset(self, worker: FakeWorker) -> bool:
        """Whether the worker resets its connection."""
        return worker.resets_connection_of(kind_of(self.action.to_request(self.epoch)))


@dataclass(frozen=True)
class Heard:
    """The last answer of a worker's process, and when it came."""

    state: WorkerState
    at: float
    restarts: int


@dataclass
class Leader:
    """Fields:

    fleet, weights: the last computed statuses, which the planners see.
    lost: calls whose answer never came, by uid of the worker, until it has answered again: the last
        of each kind and adapter.
    lost_admissions: epochs of admissions whose answer never came, until they cannot take effect.
    compared: comparisons of files without a refusal and when their calls began, by uid of the worker.
    may_open: uids of workers to which an admission may still come.
    written: what it believes to be stored, by uid.
    desired, pods: what its watches have brought, as it was at `seen_until`.
    looked_at: when it decided the last two times.
    own_writes: what it has written to pods, also while its watch has not brought it; the real ones.
    version: of the fleet's object, over which it writes; the real ones.
    todo: what it has decided and not done yet.
    clock_ahead_seconds: how wrong its wall clock is.
    slept_seconds: how long its monotonic clock stood still.
    looks_left: how often it will look around yet, if it was suspended and another one leads.
    fleet_version: of the fleet's object, as it was read at the start.
    epochs, watch, templates, calls: the real ones; calls by uid of the worker.
    pins: how many pins a status holds; None: as many as a real one.
    number: of all leaders of the history. Terms begin again after the Lease was deleted.
    """

    term: int
    fleet: FleetStatus
    weights: dict[str, WeightsStatus]
    heard: dict[str, Heard] = field(default_factory=dict)
    silent_since: dict[str, float] = field(default_factory=dict)
    flights: dict[str, Flight] = field(default_factory=dict)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    lost: dict[str, dict[tuple[str, str | None], Work]] = field(default_factory=dict)
    lost_admissions: dict[str, Epoch] = field(default_factory=dict)
    compared: dict[str, dict[str | None, tuple[Work, float]]] = field(default_factory=dict)
    may_open: set[str] = field(default_factory=set)
    written: dict[str, FleetStatus | WeightsStatus] = field(default_factory=dict)
    clock_ahead_seconds: float = 0
    slept_seconds: float = 0
    looks_left: int = 0
    fleet_version: InitVar[int] = 0
    epochs: Epochs = field(init=False)
    watch: RolloutTimers = field(default_factory=RolloutTimers)
    templates: Templates | None = None
    seen_until: float = 0
    looked_at: tuple[float, float] = (0, 0)
    desired: Desired | None = None
    pods: tuple[PodView, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)
    own_writes: UnobservedWrites = field(default_factory=UnobservedWrites)
    version: KnownVersion = field(default_factory=KnownVersion)
    decision: Decision | None = None
    observed: FleetObserved | None = None
    todo: deque[Doing] = field(default_factory=deque)
    pins: int | None = None
    number: int = 0

    def __post_init__(self, fleet_version: int) -> None:
        term = self.term
        self.epochs = Epochs(KEY, lambda: term)
        self.version.note(str(fleet_version))

    def may_write_over(self, fleet_version: int) -> bool:
        """Whether the API server takes a write of the fleet's status over this version."""
        return self.version.guard in {"", str(fleet_version)}

    def note_written(self, fleet_version: int) -> int:
        """The status was written over this version. Returns: the version that it has now."""
        version = fleet_version + 1
        self.version.note(str(version))
        return version

    def note_stored(self, fleet_version: int, stored: FleetStatus) -> None:
        """Its watch has brought the fleet, or it has read it, with this version and status."""
        if not is_later(str(fleet_version), self.version.guard):
            return
        self.version.note(str(fleet_version))
        with _room_for(self.pins):
            self.fleet = with_record_of(stored, ours=self.fleet, base=self.stored)
        self.written["fleet"] = stored

    @property
    def epoch(self) -> Epoch:
        return self.epochs.last

    def decide(self, now: float) -> Decision:
        """Decide what to do, on what it knows, by its own clocks."""
        self.looked_at = (self.looked_at[1], now)
        self.observed = self._observe(self.own(now))
        wall = at(now + self.clock_ahead_seconds)
        with _room_for(self.pins):
            decision = decide(self.observed, default_image=IMAGE, now=wall)
        self.epochs.for_step(decision.goals, admits=decision.admits)
        for uid, status in decision.weights.items():
            self.watch.decided(uid, status, self.own(now), term=self.epochs.calling_term)
        # As in the runtime, what is decided is known before anything is done.
        self.fleet = decision.fleet
        self.weights = dict(decision.weights)  # of what is deleted nothing is kept
        self.decision = decision
        return decision

    @property
    def looks_seldom(self) -> bool:
        """Whether its looks are so far apart that each one renews pauses, and none is left for loads. A real
        leader looks again after each answer.
        """
        return self.looked_at[1] - self.looked_at[0] >= SELDOM_SECONDS

    def own(self, now: float) -> float:
        """A moment on its monotonic clock."""
        return now - self.slept_seconds

    def read_lease(self, *, ours: bool) -> None:
        """It has read the Lease, as it does after a worker has refused a call as old."""
        if ours and self.epochs.refused is not None:
            self.epochs.raise_above(self.epochs.refused)

    def wants_to_send(self, call: WorkerCall, now: float) -> bool:
        """Not what is in flight already, nor too early what had no effect; and nothing until the Lease
        was read, after a call was refused as old.
        """
        if self.epochs.is_term_pending:
            return False
        flight = self.flights.get(call.pod_uid)
        if flight is not None and flight.action.work == call.work:
            return False
        return not self.must_wait(call.pod_uid, call.work, now)

    def must_wait(self, uid: str, work: Work, now: float) -> bool:
        """Whether it repeats a call only later, because its effect was not seen."""
        calls = self.calls.get(uid)
        return calls is not None and calls.wait_seconds(work, self.own(now)) > 0

    def begin_flight(self, uid: str, flight: Flight) -> None:
        """It sends a call."""
        self.flights[uid] = flight
        self.note_call(uid, flight.action, flight.sent_at)

    def note_call(self, uid: str, call: WorkerCall, now: float) -> None:
        """It has sent a call."""
        self.calls.setdefault(uid, CallRecord()).begin(call.work, self.own(now))

    def hear(self, uid: str, state: WorkerState, restarts: int, now: float) -> None:
        """A worker has answered."""
        self.calls.setdefault(uid, CallRecord()).note_state(state)
        self.heard[uid] = Heard(state, self.own(now), restarts)
        if (ended := ended_at(state, self.own(now))) is not None:
            self.ended[uid] = ended
        self.silent_since.pop(uid, None)
        self.lost.pop(uid, None)
        if may_open_late(state, lost=self.lost_admissions.get(uid), term=self.epoch.term):
            self.may_open.add(uid)
        else:
            self.may_open.discard(uid)
            self.lost_admissions.pop(uid, None)

    def miss(self, uid: str, now: float) -> None:
        """A worker has not answered."""
        self.silent_since.setdefault(uid, self.own(now))

    def lose(self, uid: str, call: WorkerCall, epoch: Epoch) -> None:
        """A call has got no answer."""
        self._lose(uid, call.work)
        if isinstance(call, Admit):
            self.lost_admissions[uid] = epoch
            self.may_open.add(uid)

    def _lose(self, uid: str, work: Work) -> None:
        self.lost.setdefault(uid, {})[work.subject] = work

    def end_flight(self, uid: str, now: float) -> None:
        """The answer to a call has come."""
        flight = self.flights.pop(uid)
        reason = flight.ticket.reason if flight.ticket and flight.state else None
        answer = WorkerAnswer(state=flight.state, reason=reason, silent=flight.state is None)
        if (calls := self.calls.get(uid)) is not None:
            calls.end(flight.action, answer, self.own(now))
        if flight.state is None:
            self.miss(uid, now)
            self.lose(uid, flight.action, flight.epoch)
            return
        self.hear(uid, flight.state, flight.restarts, now)
        work = flight.action.work
        if work.kind in COMPARISONS:
            ended = self.compared.setdefault(uid, {})
            ended.pop(work.adapter, None)
            if reason is None:
                ended[work.adapter] = work, self.own(flight.sent_at)
        pod = next((p for p in self.pods if p.uid == uid), None)
        if reason is Reason.STALE_EPOCH and pod is not None and flight.state.epoch is not None:
            self.epochs.note_refusal(pod, flight.state.epoch)

    def look_at_pods(self, pods: tuple[PodView, ...]) -> None:
        """The informer has brought these. A new container starts a new entry."""
        self.pods = tuple(map(judged, self.own_writes.laid_over(pods)))
        there = {p.uid: p.restarts for p in pods}
        for uid in self.restarts.keys() | self.heard.keys() | self.flights.keys():
            if self.restarts.get(uid, there.get(uid)) != there.get(uid):
                if (flight := self.flights.get(uid)) is not None:
                    self._lose(uid, flight.action.work)
                for known in (
                    *(self.heard, self.silent_since, self.flights),
                    *(self.lost_admissions, self.compared),
                ):
                    known.pop(uid, None)
                if (calls := self.calls.get(uid)) is not None:
                    self.calls[uid] = calls.after_restart()
                self.may_open.discard(uid)
        self.restarts = there
        for remembered in (self.calls, self.ended):
            for uid in remembered.keys() - there.keys():
                del remembered[uid]

    def _observe(self, now: float) -> FleetObserved:
        assert self.desired is not None
        views = (self._weights_view(uid, asked, now) for uid, asked in self.desired.weights)
        workers = {p.ordinal: self._worker(p, now) for p in self.pods}
        observed = FleetObserved(
            name="policy",
            namespace="rl",
            uid="fleet",
            generation=self.desired.generation,
            spec=self.desired.fleet_spec,
            status=self.fleet,
            stored=self.stored,
            weights=tuple(views),
            workers=tuple(workers[n] for n in sorted(workers)),
            clock_seconds=now,
        )
        return self._with_template(observed)

    def _with_template(self, observed: FleetObserved) -> FleetObserved:
        templates = self.templates
        assert templates is not None
        error: Exception | None = None
        if templates.known(observed) is None:
            in_use = {w.pod.revision for w in observed.workers if not w.pod.deleting}
            try:
                at_once(templates.ensure(observed, in_use))
            except (FleetError, TypeError, ValueError, KeyError) as caught:  # any, for `Writes`
                error = caught
        self.note_template(error)
        known = templates.known(observed)
        return replace(observed, template=known, release=templates.release)

    def note_template(self, error: Exception | None) -> None:
        """The reason why the template is not recorded; None if it is."""

    def _weights_view(self, uid: str, asked: Asked, now: float) -> WeightsView:
        status = self.weights.get(uid, NO_STATUS)
        watched = self.watch.update(uid, status, now, term=self.epochs.calling_term)
        return asked.view(uid, status, watched)

    @property
    def stored(self) -> FleetStatus:
        """The status of the fleet that is stored, as far as it knows."""
        written = self.written.get("fleet")
        return written if isinstance(written, FleetStatus) else FleetStatus()

    def _worker(self, pod: PodView, now: float) -> WorkerView:
        heard, silent = self.heard.get(pod.uid), self.silent_since.get(pod.uid)
        flight = self.flights.get(pod.uid)
        compared = self.compared.get(pod.uid, {}).values()
        calls = self.calls.get(pod.uid)
        return WorkerView(
            pod=pod,
            state=heard.state if heard else None,
            state_age_seconds=now - heard.at if heard else 0,
            silent_seconds=max(now - silent, 0.001) if silent is not None else 0,
            silence="time-out",
            call=flight.action.work if flight else None,
            lost_calls=tuple(self.lost.get(pod.uid, {}).values()),
            compared=tuple(Compared(work, now - at) for work, at in compared),
            unheeded=calls.unheeded(now) if calls else (),
            ended=self.ended.get(pod.uid),
            may_open=pod.uid in self.may_open
            or (flight is not None and isinstance(flight.action, Admit)),
        )
