"""The operator's knowledge of one fleet at one moment, as frozen records.

The planners read nothing else, so only what is here can influence a decision. The runtime builds the
records from its watches, and tests build them with `tests.support.builders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import (
    NO_WORKERS,
    Workers,
)
from fleet_operator.core.manifests.templates import RecordedTemplate
from fleet_operator.core.problems import Problem
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import WeightsStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How long this leader has been watching a rollout, on its monotonic clock.

    Timeouts count this time only, not recorded times. A worker is not late if there was no leader, or
    if the leader could not call it. A change of a wall clock has no effect.

    Fields:
        phase_seconds: since the leader first saw the recorded phase, without the time in which it
            did not reconcile or could not call.
        attempt_seconds: since the leader first saw this attempt at the version.
        saw_it_begin: the attempt began with a decision of this leader.
    """

    phase_seconds: float = 0
    attempt_seconds: float = 0
    saw_it_begin: bool = False

    def seconds_since(self, began: datetime, now: datetime) -> float:
        """Returns the seconds since a recorded time. Clocks differ and jump: the result is never
        negative, and never above the duration of an attempt that this leader saw begin.
        """
        seconds = max((now - began).total_seconds(), 0.0)
        return min(seconds, self.attempt_seconds) if self.saw_it_begin else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsView:
    """One WeightVersion object.

    Fields:
        retry: value of its retry annotation (`names.retry_mark`).
        requested_by: the field manager that wrote the version; empty if several have.
        traceparent: value of its annotation for tracing.
        unreadable: why this generation's spec cannot be read; `spec` is the last one that could.
        unreadable_reason: the reason of the condition that reports it.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: datetime
    spec: WeightsSpec
    retry: str = ""
    requested_by: str = ""
    traceparent: str = ""
    status: WeightsStatus = field(default_factory=WeightsStatus)
    unreadable: str = ""
    unreadable_reason: ConditionReason = ConditionReason.INVALID_SPEC
    watched: Watched = Watched()

    @property
    def fleet(self) -> str:
        """Name of its fleet."""
        return self.spec.fleet_ref.name

    @property
    def desired(self) -> Checkpoint:
        """Returns the desired weights, with the placeholder in their source replaced."""
        spec = self.spec
        source = spec.source.resolve(spec.version)
        return Checkpoint(
            version=spec.version, source=source, digest=spec.digest, run_id=spec.run_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadWeights:
    """One WeightVersion object whose spec could not be read so far. It steers nothing, and no other
    object steers in its place.

    Fields:
        fleet: name of its fleet; empty if that cannot be read either.
        adapter: its adapter; None if that cannot be read either.
        unreadable: why, and `unreadable_reason` the reason of the condition that reports it.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: datetime
    fleet: str
    unreadable: str
    unreadable_reason: ConditionReason = ConditionReason.INVALID_SPEC
    adapter: str | None = None
    status: WeightsStatus = field(default_factory=WeightsStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterObject:
    """An object of a router. `path`: in the API. `owner`: uid of its controller; empty without one."""

    path: str
    uid: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """The router of a fleet. `problem`: why it has no pods; empty if it has."""

    objects: tuple[RouterObject, ...] = ()
    ready_replicas: int = 0
    problem: str = ""


class _Steering(NamedTuple):
    """Which WeightVersion steers what.

    Fields:
        of_adapter: by adapter; that of the base weights is empty.
        slots: those that steer adapters, by uid.
    """

    of_adapter: Mapping[str, WeightsView | UnreadWeights]
    slots: Mapping[str, WeightsView]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObserved:
    """One fleet with its objects and workers.

    Shapes: workers in order of ordinal, at most 10,000; weights in order of creation.

    Fields:
        operator: namespace and name of the operator's Lease, as `ns/name`.
        stored: the status that is certainly stored; None if that is `status`.
        unread: WeightVersions of this fleet that could not be read.
        beyond: WeightVersions that steer nothing, because there are too many (`steering.LOOKED_AT`), and
            that get a status now.
        beyond_count: how many there are beyond the bound.
        unreadable: why this generation's spec cannot be read; `spec` is the last one that could.
        unreadable_reason: the reason of the condition that reports it.
        problems: failures of the runtime that no success has ended yet.
        has_token: whether the admin token is known; without it no worker gets a call.
        template: the template for pods of this spec; None while unknown, and then no pod is created
            or replaced.
        release: of the operator.
        clock_seconds: the time on the monotonic clock of this leader.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: FleetSpec
    status: FleetStatus = field(default_factory=FleetStatus)
    operator: str = ""
    stored: FleetStatus | None = None
    weights: tuple[WeightsView, ...] = ()
    workers: Workers = NO_WORKERS
    unread: tuple[UnreadWeights, ...] = ()
    beyond: tuple[WeightsView | UnreadWeights, ...] = ()
    beyond_count: int = 0
    unreadable: str = ""
    unreadable_reason: ConditionReason = ConditionReason.INVALID_SPEC
    problems: tuple[Problem, ...] = ()
    has_token: bool = True
    template: RecordedTemplate | None = None
    release: str = ""
    clock_seconds: float = 0.0
    router: RouterView = RouterView()
    _steering: _Steering | None = field(init=False, default=None, compare=False, repr=False)
    """Computed when it is needed: each adapter's decision is made on a copy, and most never need it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", Workers.of(self.workers))

    @property
    def stored_status(self) -> FleetStatus:
        """The status that the next leader finds."""
        return self.status if self.stored is None else self.stored

    @property
    def all_weights(self) -> tuple[WeightsView | UnreadWeights, ...]:
        """Every WeightVersion of which a decision sets the status, read or not."""
        return (*self.weights, *self.unread, *self.beyond)

    @property
    def is_external(self) -> bool:
        """Whether a trainer drives the workers itself."""
        return self.spec.is_external

    @property
    def expected_workers(self) -> int:
        """Returns how many workers there can be now: the replicas without the pods behind a scheduling
        gate, which can last for any time. Gated pods beyond the replicas do not reduce the number.
        """
        there = self.workers.where(lambda f: not f.pod.deleting and not f.pod.drains)
        gated = there.count(lambda f: f.pod.gated)
        replicas = self.spec.replicas
        return max(replicas - gated, min(replicas, len(there) - gated))

    @property
    def base_weights(self) -> WeightsView | None:
        """The WeightVersion that steers the base weights: the oldest one, so that it stays the same."""
        steering = self._steers().of_adapter.get("")
        return steering if isinstance(steering, WeightsView) else None

    @property
    def lora_weights(self) -> tuple[WeightsView, ...]:
        """The WeightVersions that steer adapters, oldest first, at most `spec.adapters.max`. One with the
        name of the base model takes no place: workers refuse it.
        """
        return tuple(self._steers().slots.values())

    def steers(self, weights: WeightsView) -> WeightsView | UnreadWeights | None:
        """Returns the WeightVersion that steers the base weights or the adapter of this one, or the
        unread one that has its place. None in an External fleet.
        """
        return self._steers().of_adapter.get(weights.spec.adapter)

    def has_slot(self, weights: WeightsView) -> bool:
        """Whether this one steers an adapter."""
        return weights.uid in self._steers().slots

    def has_model_name(self, weights: WeightsView) -> bool:
        """Whether its adapter has the name under which requests reach the base model."""
        return weights.spec.adapter == self.spec.model.name

    def _steers(self) -> _Steering:
        if self._steering is None:
            every = self._steer_what()
            object.__setattr__(self, "_steering", _Steering(every, self._steer_adapters(every)))
        assert self._steering is not None  # noqa: S101 - for mypy
        return self._steering

    def _steer_what(self) -> Mapping[str, WeightsView | UnreadWeights]:
        if self.is_external:
            return {}
        found: dict[str, WeightsView | UnreadWeights] = {}
        every: list[WeightsView | UnreadWeights] = [*self.weights, *self.unread]
        for weights in sorted(every, key=lambda w: (w.created_at, w.name)):
            if isinstance(weights, UnreadWeights):
                adapter = weights.adapter
            else:
                adapter = weights.spec.adapter
            if adapter is not None:
                found.setdefault(adapter, weights)
        return found

    def _steer_adapters(
        self, every: Mapping[str, WeightsView | UnreadWeights]
    ) -> Mapping[str, WeightsView]:
        read = (w for w in every.values() if isinstance(w, WeightsView))
        steering = (w for w in read if w.spec.adapter and not self.has_model_name(w))
        return {w.uid: w for w in islice(steering, self.spec.adapters.max)}
