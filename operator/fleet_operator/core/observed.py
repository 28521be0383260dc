"""What the operator knows about one fleet at one moment, frozen.

Everything that the planners read stands here; what is not here cannot influence a decision. The
records are built by `runtime.observe` and by the builders of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Self

from fleet_operator.api.base import renewed
from fleet_operator.api.fleet import AppliedWeights, FleetSpec, FleetStatus, PinnedWeights
from fleet_operator.api.source import WeightSource
from fleet_operator.api.weights import WeightsSpec, WeightsStatus
from fleet_operator.core.identity import Named, WeightsId, label, same_weights
from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.core.templates import RecordedTemplate
from fleet_operator.core.troubles import Trouble
from fleet_worker.protocol import Phase, WorkerState

_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})
PROBE_SECONDS = 10.0
"""Within this time the kubelet's readiness probe sees what a worker does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """The few facts of a pod that decisions need; 10,000 of these are held in memory.

    Fields:
        running: the worker container runs right now.
        started: its process has answered the startup probe since the container began.
        trouble: the cluster's own words for why the pod does not run (configuration, crash).
        wait: what it waits for that the cluster may still bring; None if for nothing.
        evicted: it is being deleted since its node is lost; nobody there can confirm its end.
        gone_by: when a pod that is being deleted should have been gone.
        owner: uid of its controller; empty for a pod that nobody owns.
        quarantine: why the operator took it out of service; empty otherwise.
        drains_since: since when the operator lets its requests end, to delete it then; None if it
            stays.
    """

    uid: str
    name: str
    ordinal: int
    revision: str
    ip: str | None = None
    node: str | None = None
    phase: str = "Pending"
    running: bool = False
    started: bool = False
    ready: bool = False
    deleting: bool = False
    evicted: bool = False
    gone_by: datetime | None = None
    owner: str = ""
    restarts: int = 0
    trouble: str = ""
    wait: PodWait | None = None
    quarantine: str = ""
    drains_since: datetime | None = None

    @property
    def is_gated(self) -> bool:
        """Whether it waits for a scheduling gate."""
        return self.wait is not None and self.wait.awaited is Awaited.GATE


class Standing(Enum):
    """What a worker can do to a client right now."""

    ABSENT = auto()
    """Nothing runs, or the cluster has taken it out of service: it cannot generate for anybody."""
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
    """One worker: its pod, what it last said, and how long it has not answered.

    Fields:
        state: the last answer of the process that runs now; None if there was none.
        state_age_seconds: how old that answer is; ages and lease times in it have moved on by it.
        silent_seconds: 0 while it answers, else seconds since the first failed question.
        call: what the operator is asking of it right now, empty if nothing.
    """

    pod: PodView
    state: WorkerState | None = None
    state_age_seconds: float = 0
    silent_seconds: float = 0
    silence: str = ""
    call: str = ""
    standing: Standing = field(init=False, compare=False, repr=False)
    """What this worker can do to a client right now, judged on the safe side."""
    loaded: WeightsId | None = field(init=False, compare=False, repr=False)
    """Name of the weights in its engine, as far as known."""

    def __post_init__(self) -> None:
        # Once for each view: a decision asks for both about twenty times.
        object.__setattr__(self, "standing", self._standing())
        object.__setattr__(self, "loaded", self._loaded())

    def _standing(self) -> Standing:
        if self.pod.deleting or self.pod.quarantine or not self.pod.running:
            return Standing.ABSENT
        if self.silent_seconds > 0 or self.state is None:
            # Not ready means that the kubelet's probe fails too, or that its node is lost: the
            # Service has dropped it and clients do not reach it. Otherwise it may be answering;
            # so may one that was admitted a moment ago, before the probe has seen it.
            admitted = self.state is not None and self.state.admitted
            lately = admitted and self.silent_seconds < PROBE_SECONDS
            return Standing.UNKNOWN if self.pod.ready or lately else Standing.ABSENT
        phase = self.state.phase
        if self.pod.drains_since is not None and not self.state.admitted:
            return Standing.ABSENT  # it only ends what it has, and no other one waits for it
        if phase is not Phase.PAUSING and (phase in _CLOSED or not self.state.admitted):
            # Whatever its phase says: of an earlier release, whose phase did not follow its latch.
            return Standing.CLOSED
        # A phase of a newer release: whoever is admitted may generate.
        return Standing.HELD if phase in (Phase.PAUSED, Phase.LOADING) else Standing.OPEN

    @property
    def may_reopen(self) -> bool:
        """Whether it gets no clients now, but may generate again by itself, as it was: its process
        is up and does not answer, so that nobody can close its latch.

        Nor does it prove anything for long that its latch was closed when it answered last: it may
        have been opened by a call whose answer never came.
        """
        gone = self.pod.deleting or self.pod.quarantine or not self.pod.running
        if gone or self.standing is not Standing.ABSENT:
            return False
        if self.state is None:
            return self.pod.started
        could_open = self.pod.started and self.state.phase is Phase.JOINING
        opened_since = could_open and self.silent_seconds >= PROBE_SECONDS
        return self.state.admitted or opened_since

    @property
    def held_seconds(self) -> float:
        """How long it has been holding its requests."""
        pause = self.state.pause if self.state else None
        return pause.paused_seconds + self.state_age_seconds if pause else 0

    @property
    def goes_on_by_itself(self) -> bool:
        """Whether it holds its requests on weights that it has served: if nobody renews its pause it
        generates with them again. One that has loaded others closes its latch instead.
        """
        if self.standing is not Standing.HELD or self.state is None:
            return False
        timings = self.state.timings  # they begin anew with every pause
        return self.state.phase is Phase.PAUSED and (
            timings is None or timings.load_seconds is None
        )

    @property
    def version(self) -> str | None:
        """Label of the weights in its engine, as far as known."""
        return self.state.version if self.state else None

    def _loaded(self) -> WeightsId | None:
        state = self.state
        if state is None or state.version is None:
            return None
        return WeightsId(state.version, state.run_id, state.digest)

    @property
    def staged(self) -> WeightsId | None:
        """Name of the weights whose bytes it holds, ready to load."""
        held = self.state.staged if self.state else None
        return WeightsId(held.version, held.run_id, held.digest) if held is not None else None

    def has_loaded(self, weights: Named) -> bool:
        """Whether these weights are in its engine."""
        loaded = self.loaded
        return loaded is not None and same_weights(loaded, weights)

    def has_staged(self, weights: Named) -> bool:
        """Whether it holds the bytes of these weights, ready to load."""
        staged = self.staged
        return staged is not None and same_weights(staged, weights)

    def adapter(self, name: str) -> WeightsId | None:
        """Name of the version that new requests for this adapter get; None if it has none."""
        adapters = self.state.adapters if self.state else ()
        found = next((a for a in adapters if a.name == name), None)
        if found is None or found.version is None:
            return None
        return WeightsId(found.version, found.run_id, found.digest)

    @property
    def takes_adapters(self) -> bool:
        """Whether its engine has room for adapters at all."""
        return self.state is not None and self.state.adapter_slots is not None

    @property
    def operation(self) -> str:
        """`kind version` of the work it does right now, by its own account; empty if none. One in a
        phase that this release does not know is at work on something.
        """
        if self.state is None:
            return ""
        if self.state.operation is None:
            return "" if isinstance(self.state.phase, Phase) else self.state.phase
        return f"{self.state.operation.kind} {self.state.operation.version or ''}".strip()

    def is_at(self, kind: str, weights: Named) -> bool:
        """Whether it does this kind of work with these weights right now, by its own account.

        A digest is no part of it: it is known only when the files have been read.
        """
        work = self.state.operation if self.state else None
        return (
            work is not None
            and work.kind == kind
            and work.version == weights.version
            and work.run_id in {None, weights.run_id}
        )

    def is_loading(self, weights: Named) -> bool:
        """Whether it is putting these weights into its engine right now."""
        return self.is_at("load", weights) or self.is_at("apply", weights)

    def loads_others_than(self, weights: Named) -> bool:
        """Whether it is putting other weights into its engine right now."""
        work = self.state.operation if self.state else None
        loads = work is not None and work.kind in {"load", "apply"}
        return loads and not self.is_loading(weights)

    @property
    def busy(self) -> bool:
        """Whether it works on something, by its own account or by a call of ours in flight."""
        return bool(self.call or self.operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Weights with their name and where they come from.

    Fields:
        digest: of their files, if the trainer has named it or the fleet has pinned it.
        pinned: the digest is the fleet's, not the trainer's.
        reused: the version stands for other weights: nothing that workers have is this.
        awaited: a rollout is to bring it: a directory that does not exist may still come.
    """

    version: str
    source: WeightSource
    digest: str | None = None
    run_id: str | None = None
    pinned: bool = False
    reused: bool = False
    awaited: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.label} ({self.source})"

    @property
    def label(self) -> str:
        """Version, and run if one was named."""
        return label(self.version, self.run_id)

    @classmethod
    def recorded(cls, applied: AppliedWeights) -> Self:
        """As a status holds it."""
        return cls(
            version=applied.version,
            source=applied.source,
            digest=applied.digest,
            run_id=applied.run_id,
        )

    @classmethod
    def passing(cls, weights: WeightsId, source: WeightSource) -> Self:
        """Weights that workers hold on the way to others, and that no object asks for now."""
        version, run_id, digest = weights
        return cls(version=version, source=source, digest=digest, run_id=run_id)

    def to_record(
        self, before: AppliedWeights | None, *, applied_at: datetime | None
    ) -> AppliedWeights:
        """For a status. `before`: what it has now."""
        if before is None:
            before = AppliedWeights(version=self.version, source=self.source)
        return renewed(
            before,
            version=self.version,
            source=self.source,
            digest=self.digest,
            run_id=self.run_id,
            applied_at=applied_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How long this leader has been watching a rollout, on its monotonic clock.

    Timeouts count this and no recorded time: a worker that was not asked is not late, be it that no
    process led, that the leader could not call, or that a wall clock was set.

    Fields:
        phase_seconds: since it first saw the recorded phase, without the time in which it did not
            look or could not call.
        attempt_seconds: since it first saw this attempt at the version.
        saw_it_begin: the attempt began with a decision of this leader.
    """

    phase_seconds: float = 0
    attempt_seconds: float = 0
    saw_it_begin: bool = False

    def seconds_since(self, began: datetime, now: datetime) -> float:
        """Seconds of the attempt since a recorded time. Clocks differ and jump: never negative,
        and never longer than an attempt has lasted that this leader saw begin.
        """
        seconds = max((now - began).total_seconds(), 0.0)
        return min(seconds, self.attempt_seconds) if self.saw_it_begin else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsView:
    """One WeightVersion object.

    Fields:
        retry: value of its retry annotation.
        unreadable: why this generation's spec cannot be read; `spec` is the last one that could.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: datetime
    spec: WeightsSpec
    retry: str = ""
    status: WeightsStatus = field(default_factory=WeightsStatus)
    unreadable: str = ""
    watched: Watched = Watched()

    @property
    def fleet(self) -> str:
        """Name of the fleet that it names."""
        return self.spec.fleet_ref.name

    @property
    def desired(self) -> Target:
        """What it asks for, with the placeholder of its source filled in."""
        spec = self.spec
        source = spec.source.resolve(spec.version)
        return Target(version=spec.version, source=source, digest=spec.digest, run_id=spec.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadWeights:
    """One WeightVersion object of which no spec has been read yet. It steers nothing, and no other
    object steers in its place.

    Fields:
        fleet: name of the fleet that it names; empty if that cannot be read either.
        adapter: the adapter that it names; None if that cannot be read either.
        unreadable: why.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: datetime
    fleet: str
    unreadable: str
    adapter: str | None = None
    status: WeightsStatus = field(default_factory=WeightsStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObserved:
    """One fleet with everything that belongs to it.

    Shapes: workers in order of ordinal, at most 10,000; weights in order of creation.

    Fields:
        operator: namespace and name of our Lease, as `ns/name`.
        unread: WeightVersions of this fleet that could not be read.
        unreadable: why this generation's spec cannot be read; `spec` is the last one that could.
        troubles: what the runtime has failed at, and what has not succeeded since.
        template: what pods of this spec are made from; None while that is not known: no pod can be
            made, and none is replaced.
        release: of the operator.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: FleetSpec
    status: FleetStatus = field(default_factory=FleetStatus)
    operator: str = ""
    stored_pins: tuple[PinnedWeights, ...] | None = None
    weights: tuple[WeightsView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    unread: tuple[UnreadWeights, ...] = ()
    unreadable: str = ""
    troubles: tuple[Trouble, ...] = ()
    template: RecordedTemplate | None = None
    release: str = ""
    _steering: Mapping[str, WeightsView] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steering", self._steers_what())

    @property
    def all_weights(self) -> tuple[WeightsView | UnreadWeights, ...]:
        """Every WeightVersion, read or not."""
        return (*self.weights, *self.unread)

    @property
    def is_external(self) -> bool:
        """Whether a trainer drives the workers itself."""
        return self.spec.weights.management == "External"

    @property
    def expected_workers(self) -> int:
        """How many workers there can be now: the replicas without pods behind a scheduling gate, which
        a queue holds back for as long as it wants. One beyond the replicas takes no place of theirs.
        """
        pods = [w.pod for w in self.workers if not w.pod.deleting and w.pod.drains_since is None]
        gated = sum(p.is_gated for p in pods)
        replicas = self.spec.replicas
        return max(replicas - gated, min(replicas, len(pods) - gated))

    @property
    def base_weights(self) -> WeightsView | None:
        """The WeightVersion that steers the base weights: the oldest, so that it never changes."""
        return self._steering.get("")

    @property
    def adapter_weights(self) -> tuple[WeightsView, ...]:
        """The WeightVersions that steer adapters, oldest first, as many as the fleet has room for."""
        steering = [w for name, w in self._steering.items() if name]
        return tuple(steering[: self.spec.adapters.max])

    def steers(self, weights: WeightsView) -> WeightsView | None:
        """The WeightVersion that steers what this one asks for."""
        return self._steering.get(weights.spec.adapter)

    def _steers_what(self) -> dict[str, WeightsView]:
        if self.is_external:
            return {}
        found: dict[str, WeightsView | None] = {}
        for weights in sorted(self.all_weights, key=lambda w: (w.created_at, w.name)):
            if isinstance(weights, UnreadWeights):
                if weights.adapter is not None:
                    found.setdefault(weights.adapter, None)
            else:
                found.setdefault(weights.spec.adapter, weights)
        return {adapter: weights for adapter, weights in found.items() if weights is not None}
