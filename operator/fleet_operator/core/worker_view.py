"""One worker as decisions see it: its pod, its last answer, and its effect on clients."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum, auto
from operator import attrgetter

from fleet_operator.core.facts import (
    Facts,
    PodFacts,
    facts_in,
    pod_facts_of,
)
from fleet_operator.core.identity import Named, WeightsId
from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.core.work import TAKES_TIME, Compared, Ended, Outcome, Unheeded, Work, WorkKind
from fleet_worker.protocol import Phase, WorkerState

_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})
ENDED_PHASES = frozenset({"Failed", "Succeeded"})
"""Phases of a pod whose containers will not start again."""
_CONTRADICTS = frozenset({Outcome.NO_EFFECT, Outcome.REVERTED})
PROBE_SECONDS = 10.0
"""The kubelet's readiness probe notices a change of a worker within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """The fields of a pod that decisions need. Small, since memory holds up to 10,000.

    Fields:
        zone: of its node, if the API server writes it to pods, as Kubernetes 1.35 does.
        running: the worker container runs.
        started: the startup probe has passed since the container started.
        starts_again: how often its process has started again, and how it last ended; empty while it is up,
            and in its first run.
        problem: why the pod does not run (configuration, crash), as the cluster reports it.
        wait: what the pod waits for and the cluster may still provide; None without a wait.
        evicted: the pod is being deleted because its node is lost, so no kubelet confirms its end.
        gone_by: when a pod that is being deleted should be gone.
        owner: uid of its controller; empty for a pod without one.
        quarantine: why the operator took the pod out of service; empty otherwise.
        drains_since: when the operator began to drain the pod, to delete it; None if it stays.
        version: resourceVersion of the pod. It tells nothing to a decision.
    """

    uid: str
    name: str
    ordinal: int
    revision: str
    ip: str | None = None
    node: str | None = None
    zone: str = ""
    phase: str = "Pending"
    running: bool = False
    started: bool = False
    ready: bool = False
    deleting: bool = False
    evicted: bool = False
    gone_by: datetime | None = None
    owner: str = ""
    restarts: int = 0
    starts_again: str = ""
    problem: str = ""
    wait: PodWait | None = None
    quarantine: str = ""
    drains_since: datetime | None = None
    version: str = field(default="", compare=False)
    facts: PodFacts = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        facts = pod_facts_of(
            revision=self.revision,
            ready=self.ready,
            running=self.running,
            deleting=self.deleting,
            drains=self.drains_since is not None,
            gated=self.wait is not None and self.wait.awaited is Awaited.GATE,
            blocked=bool(self.problem or self.wait),
            quarantined=bool(self.quarantine),
            ended=self.phase in ENDED_PHASES,
            owned=bool(self.owner),
        )
        object.__setattr__(self, "facts", facts)


class Standing(Enum):
    """The effect that a worker can have on clients right now."""

    # By identity: the hash of `Enum` runs in Python, and a decision needs it thousands of times.
    __hash__ = object.__hash__

    ABSENT = auto()
    """Does not run, or is out of the Service: it cannot generate for clients."""
    CLOSED = auto()
    """Runs with its latch closed."""
    OPEN = auto()
    """Generates."""
    HELD = auto()
    """Admitted and paused or loading: requests wait, nothing generates."""
    UNKNOWN = auto()
    """In service but does not answer: it may generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker: its pod, its last answer, and how long it has been silent.

    Fields:
        state: the last answer of the process that runs now; None without one.
        state_age_seconds: age of that answer, for ages and lease times in it. 0 if the answer holds
            no such times, so that an unchanged worker has an equal view.
        silent_seconds: 0 while the worker answers, otherwise seconds since the first failed request.
        call: the work that the call in flight asks for; None without one.
        lost_calls: the same of calls that got no answer, until the worker has answered again: the last
            call of each kind, and of each adapter.
        compared: the last comparison of the files of base weights, and of each adapter.
        unheeded: calls that it has not followed.
        may_open: an admission is in flight, or one that got no answer may arrive late.
        ended: the last load, swap or fence that it has reported, also while it lasts.
    """

    pod: PodView
    state: WorkerState | None = None
    state_age_seconds: float = 0
    silent_seconds: float = 0
    silence: str = ""
    call: Work | None = None
    lost_calls: tuple[Work, ...] = ()
    compared: tuple[Compared, ...] = ()
    unheeded: tuple[Unheeded, ...] = ()
    may_open: bool = False
    ended: Ended | None = None
    standing: Standing = field(init=False, compare=False, repr=False)
    """The effect that it can have on clients right now; in case of doubt the riskier one."""
    loaded: WeightsId | None = field(init=False, compare=False, repr=False)
    """Name of the weights in its engine, if known."""
    facts: Facts = field(init=False, compare=False, repr=False)
    """The facts that it shares with equal workers."""

    def __post_init__(self) -> None:
        # Computed once for each view: a decision reads each about twenty times.
        object.__setattr__(self, "standing", self._standing())
        facts = facts_in(
            self.state,
            self.standing,
            self.pod.facts,
            self.call,
            silent=self.silent_seconds > 0,
            may_open=self.may_open,
            ignores=bool(self.unheeded)
            and any(u.is_failure and u.work.adapter is None for u in self.unheeded),
        )
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "loaded", facts.loaded)

    def with_state(self, state: WorkerState, unheeded: tuple[Unheeded, ...]) -> WorkerView:
        """Returns the view with another answer. `dataclasses.replace` takes twice as long, and adapters need a
        view of each worker.
        """
        kept = dict(zip(_GIVEN, _given_of(self), strict=True))
        return WorkerView(**(kept | {"state": state, "unheeded": unheeded}))

    def _standing(self) -> Standing:
        if self.pod.deleting or self.pod.quarantine or not self.pod.running:
            return Standing.ABSENT
        if self.silent_seconds > 0 or self.state is None:
            # Not ready: the kubelet's probe fails too, or the node is lost, so the Service has
            # dropped the worker. A ready one may still answer clients. So may one that was
            # admitted a moment ago, before the probe noticed, even if that answer was lost.
            admitted = self.state is not None and (self.state.admitted or self.may_open)
            lately = admitted and self.silent_seconds < PROBE_SECONDS
            return Standing.UNKNOWN if self.pod.ready or lately else Standing.ABSENT
        phase = self.state.phase
        if self.pod.drains_since is not None and not self.state.admitted:
            return Standing.ABSENT  # it only ends its requests, and no other worker waits for it
        if phase is not Phase.PAUSING and (phase in _CLOSED or not self.state.admitted):
            return Standing.CLOSED
        # Includes phases of a newer release: an admitted worker may generate.
        return Standing.HELD if phase in (Phase.PAUSED, Phase.LOADING) else Standing.OPEN

    @property
    def may_reopen(self) -> bool:
        """Whether it has no clients now, but may serve again by itself with its old weights: its
        process runs, is silent, and so cannot be fenced.

        A closed latch in its last answer proves little: a call whose answer was lost may have opened
        it since.
        """
        gone = self.pod.deleting or self.pod.quarantine or not self.pod.running
        if gone or self.standing is not Standing.ABSENT:
            return False
        if self.state is None:
            return self.pod.started
        # In other phases than joining it takes no new admission, but one that is under way may come late.
        could_open = self.pod.started and (self.may_open or self.state.phase is Phase.JOINING)
        opened_since = could_open and self.silent_seconds >= PROBE_SECONDS
        return self.state.admitted or opened_since

    @property
    def requests(self) -> int:
        """Returns how many requests it reports, running and held."""
        return self.state.requests_running + self.state.requests_held if self.state else 0

    @property
    def sessions(self) -> int:
        """Returns how many sessions notice a swap of the worker. One whose clients name none has as many as
        requests.
        """
        return max(self.requests, self.state.sessions if self.state else 0)

    @property
    def held_seconds(self) -> float:
        """Returns how long it has been holding its requests."""
        pause = self.state.pause if self.state else None
        return pause.paused_seconds + self.state_age_seconds if pause else 0

    @property
    def version(self) -> str | None:
        """Label of the weights in its engine, if known."""
        return self.state.version if self.state else None

    @property
    def staged(self) -> WeightsId | None:
        """Name of the weights whose bytes it holds, ready to load."""
        return self.facts.staged

    def has_loaded(self, weights: Named) -> bool:
        """Whether these weights are in its engine."""
        return self.facts.has_loaded(weights)

    def has_staged(self, weights: Named) -> bool:
        """Whether it holds the bytes of these weights, ready to load."""
        return self.facts.has_staged(weights)

    def adapter(self, name: str) -> WeightsId | None:
        """Returns the version that new requests for this adapter get; None without one."""
        adapters = self.state.adapters if self.state else ()
        found = next((a for a in adapters if a.name == name), None)
        if found is None or found.version is None:
            return None
        return WeightsId(found.version, found.run_id, found.digest)

    @property
    def takes_lora(self) -> bool:
        """Whether its engine has slots for adapters."""
        return self.state is not None and self.state.adapter_slots is not None

    @property
    def accepts_lora(self) -> bool:
        """Whether it accepts calls about adapters now."""
        ready = self.state is not None and self.state.phase in {Phase.SERVING, Phase.JOINING}
        return ready and self.takes_lora and not self.busy

    @property
    def operation(self) -> Work | None:
        """The work that it reports; None without any. A phase that this release does not know counts as
        an operation.
        """
        return self.facts.operation

    def is_doing(self, kind: WorkKind, weights: Named | None = None) -> bool:
        """Whether it reports this kind of operation, with these weights if any are given."""
        return self.facts.is_doing(kind, weights)

    def is_called_to(self, kind: WorkKind) -> bool:
        """Whether a call for this kind of work is in flight to it."""
        return self.facts.is_called_to(kind)

    @property
    def ignores_fences(self) -> bool:
        """Whether a fence does not close its latch, so that only its pod can take it out of service."""
        return any(
            u.work.kind == "fence" and (u.lasts or u.outcome in _CONTRADICTS) for u in self.unheeded
        )

    def seconds_at(self, kind: WorkKind, weights: Named) -> float | None:
        """Returns how long this kind of operation with these weights has run; None if the worker does
        not report one.
        """
        work = self.state.operation if self.state else None
        if work is None or not self.is_doing(kind, weights):
            return None
        return work.running_seconds + max(self.state_age_seconds, self.silent_seconds)

    @property
    def busy(self) -> bool:
        """Whether it reports an operation, or a call to it is in flight."""
        return self.facts.busy


def ended_at(state: WorkerState, now: float) -> Ended | None:
    """The work of an answer that came now, if it is one of `TAKES_TIME`."""
    work = state.operation
    if work is None or work.kind not in TAKES_TIME:
        return None
    return Ended(Work(work.kind, work.version, work.run_id), now, work.running_seconds)


_GIVEN = tuple(each.name for each in fields(WorkerView) if each.init)
_given_of = attrgetter(*_GIVEN)
