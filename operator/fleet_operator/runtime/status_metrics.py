"""Series that are computed from the statuses of all objects at each rendering.

A status is the only source, so an alert and `kubectl get` cannot disagree, and the series of an
object end with the object. Times are exported as timestamps: a query knows the present time. The lag
in seconds alone is a duration, for alerts that compare it with a number; it is as new as the rendering.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet_operator.core.identity import short_digest
from fleet_worker.protocol import number_of
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutPhase, RolloutWorkers, WeightsStatus

STATES = ("serving", "joining", "staging", "paused", "loading", "broken", "quarantined")
STEPS = tuple(RolloutWorkers.model_fields)

_FLEET = ("namespace", "fleet")
_WEIGHTS = (*_FLEET, "weightversion", "adapter")
_VERSIONS = ("desired", "applied", "desired_run_id", "applied_run_id", "applied_digest")
_CONDITION = ("type", "status", "reason")


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """The last status of an InferenceFleet. `key`: its namespace and name."""

    key: tuple[str, str]
    status: FleetStatus


@dataclass(frozen=True, slots=True)
class ShownWeights:
    """The last status of a WeightVersion.

    Fields:
        key: namespace and name of the fleet that it names.
        adapter: the LoRA adapter that it names; empty for base weights, and while unknown.
    """

    key: tuple[str, str]
    name: str
    adapter: str
    status: WeightsStatus


Shown = ShownFleet | ShownWeights
Replicas = Callable[[tuple[str, str]], int | None]
"""From a fleet's namespace and name to its `spec.replicas`; None if the spec is unreadable."""


class StatusMetrics(Collector):
    """Computes the series.

    Args:
        shown: The statuses to show.
        replicas: The replicas of each fleet. An alert compares the workers with them.
    """

    def __init__(self, shown: Callable[[], Iterable[Shown]], replicas: Replicas) -> None:
        self._shown = shown
        self._replicas = replicas
        self._taken: list[tuple[Shown, int | None]] = []

    def take(self) -> None:
        """Read the statuses and replicas that `collect` shows: the event loop changes them."""
        self._taken = [
            (each, self._replicas(each.key) if isinstance(each, ShownFleet) else None)
            for each in self._shown()
        ]

    def describe(self) -> list[GaugeMetricFamily]:
        """The families without samples: registering must not read any status."""
        return [*_Fleets().families, *_Weights().families]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families, with a sample for each status that has the value. Any thread may ask for them."""
        fleets, weights = _Fleets(), _Weights()
        for each, replicas in self._taken:
            if isinstance(each, ShownFleet):
                fleets.add(each, replicas)
            else:
                weights.add(each)
        yield from fleets.families
        yield from weights.families


class _Fleets:
    def __init__(self) -> None:
        self._condition = _gauge(
            "rlfleet_fleet_condition", "1 for the present state of each condition of a fleet.",
            (*_FLEET, *_CONDITION),
        )  # fmt: skip
        self._replicas = _gauge(
            "rlfleet_fleet_replicas", "Workers of a fleet by state.", (*_FLEET, "state")
        )
        self._spec_replicas = _gauge(
            "rlfleet_fleet_spec_replicas", "Replicas that the spec of a fleet asks for.", _FLEET
        )
        self._ready = _gauge("rlfleet_fleet_ready_replicas", "Ready workers of a fleet.", _FLEET)
        self._versions = _gauge(
            "rlfleet_fleet_version_info",
            "Desired and applied version of a fleet, their runs, and the applied digest.",
            (*_FLEET, *_VERSIONS),
        )
        self._lag = _gauge(
            "rlfleet_fleet_lag_versions",
            "Desired minus applied version of a fleet. Absent for labels without a number, and "
            "between two runs.",
            _FLEET,
        )
        self._applied = _gauge(
            "rlfleet_fleet_applied_timestamp_seconds",
            "When all workers first served the applied version.",
            _FLEET,
        )
        self.families = [
            self._condition, self._replicas, self._spec_replicas, self._ready, self._versions,
            self._lag, self._applied,
        ]  # fmt: skip

    def add(self, shown: ShownFleet, replicas: int | None) -> None:
        key, status = shown.key, shown.status
        for condition in status.conditions:
            self._condition.add_metric((*key, *_state_of(condition)), 1)
        for state in STATES:
            self._replicas.add_metric((*key, state), getattr(status.workers, state))
        if replicas is not None:
            self._spec_replicas.add_metric(key, replicas)
        self._ready.add_metric(key, status.ready_replicas)
        applied = status.applied if status.applied_version else None
        desired_run, applied_run = status.desired_run_id, applied.run_id if applied else None
        versions = (status.desired_version, status.applied_version, desired_run, applied_run)
        digest = short_digest(applied.digest) if applied and applied.digest else ""
        self._versions.add_metric((*key, *(v or "" for v in versions), digest), 1)
        lag = _lag_of(status, status.applied_version, applied_run)
        if lag is not None:
            self._lag.add_metric(key, lag)
        if applied is not None and applied.applied_at is not None:
            self._applied.add_metric(key, applied.applied_at.timestamp())


class _Weights:
    def __init__(self) -> None:
        self._condition = _gauge(
            "rlfleet_weightversion_condition",
            "1 for the present state of each condition of a WeightVersion.",
            (*_WEIGHTS, *_CONDITION),
        )
        self._phase = _gauge(
            "rlfleet_weightversion_phase", "1 for the present phase of a WeightVersion.",
            (*_WEIGHTS, "phase"),
        )  # fmt: skip
        self._phase_start = _gauge(
            "rlfleet_weightversion_phase_start_timestamp_seconds",
            "When the present phase of a WeightVersion began.",
            _WEIGHTS,
        )
        self._rollout_start = _gauge(
            "rlfleet_weightversion_rollout_start_timestamp_seconds",
            "When the rollout that is not applied yet began; absent without one.",
            _WEIGHTS,
        )
        self._lag = _gauge(
            "rlfleet_weightversion_lag_seconds",
            "Time since the first version that is newer than the applied one was published; 0 once "
            "the desired version is applied.",
            _WEIGHTS,
        )
        self._lag_versions = _gauge(
            "rlfleet_weightversion_lag_versions",
            "Desired version minus the last one that all workers served. Absent for labels without a "
            "number, and between two runs.",
            _WEIGHTS,
        )
        self._applied = _gauge(
            "rlfleet_weightversion_applied_timestamp_seconds",
            "When all workers first served the last version that all of them served.",
            _WEIGHTS,
        )
        self._workers = _gauge(
            "rlfleet_weightversion_workers",
            "Workers by the step of the rollout that they have reached.",
            (*_WEIGHTS, "step"),
        )
        self._superseded = _gauge(
            "rlfleet_rollout_superseded_versions",
            "Versions that were replaced on their way, before they were applied or refused.",
            _WEIGHTS,
        )
        self._changed = _gauge(
            "rlfleet_rollout_changed_share",
            "Share of the model's elements that the last loaded version changed, at the served "
            "precision. The smallest and the largest over the workers. Absent if no worker could "
            "compare.",
            (*_WEIGHTS, "bound"),
        )
        self.families = [
            self._condition, self._phase, self._phase_start, self._rollout_start, self._lag,
            self._lag_versions, self._applied, self._workers, self._superseded, self._changed,
        ]  # fmt: skip

    def add(self, shown: ShownWeights) -> None:
        status = shown.status
        labels = (*shown.key, shown.name, shown.adapter)
        for condition in status.conditions:
            self._condition.add_metric((*labels, *_state_of(condition)), 1)
        self._phase.add_metric((*labels, status.phase.value), 1)
        if status.phase_started_at is not None:
            self._phase_start.add_metric(labels, status.phase_started_at.timestamp())
        if status.started_at is not None and status.phase is not RolloutPhase.APPLIED:
            self._rollout_start.add_metric(labels, status.started_at.timestamp())
        if status.phase is RolloutPhase.APPLIED:
            self._lag.add_metric(labels, 0)
        elif status.started_at is not None:
            # The newest come first. A version that was overtaken began earlier.
            newer = takewhile(lambda e: e.result != "Applied", status.history)
            since = min([status.started_at, *(e.started_at for e in newer)])
            self._lag.add_metric(labels, max(time.time() - since.timestamp(), 0))
        self._add_applied(labels, status)
        for step in STEPS:
            self._workers.add_metric((*labels, step), getattr(status.workers, step))
        self._superseded.add_metric(labels, status.superseded_versions)
        effect = status.effect
        shares = (effect.min_changed_share, effect.max_changed_share) if effect else (None, None)
        for bound, share in zip(("min", "max"), shares, strict=True):
            if share is not None:
                self._changed.add_metric((*labels, bound), share)

    def _add_applied(self, labels: tuple[str, ...], status: WeightsStatus) -> None:
        # `applied` stays during a rollout. For an adapter, `applied_version` goes as soon as one begins.
        if (applied := status.applied) is None:
            return
        lag = _lag_of(status, applied.version, applied.run_id)
        if lag is not None:
            self._lag_versions.add_metric(labels, lag)
        if applied.applied_at is not None:
            self._applied.add_metric(labels, applied.applied_at.timestamp())


def _gauge(name: str, documentation: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=labels)


def _lag_of(
    status: FleetStatus | WeightsStatus, applied: str | None, run_id: str | None
) -> int | None:
    """Versions from an applied one of a run to the desired one. None: they cannot be compared."""
    desired, reached = number_of(status.desired_version or ""), number_of(applied or "")
    if desired is None or reached is None or status.desired_run_id != run_id:
        return None
    return desired - reached


def _state_of(condition: Condition) -> tuple[str, str, str]:
    return condition.type.value, condition.status, condition.reason.value
