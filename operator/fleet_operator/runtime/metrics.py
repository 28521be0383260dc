"""Metrics of the operator. Labels are fleets, phases and outcomes, never pods or versions that
would grow without bound; `version` stands on one info series a fleet, which is replaced.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.identity import short
from fleet_operator.runtime.informer import FleetKey

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
_FLEET = ("namespace", "fleet")
_STATES = ("serving", "joining", "staging", "paused", "loading", "broken", "quarantined")


class Metrics:
    """All series of one operator process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.leading = Gauge(
            "rlfleet_operator_leading", "1 while this process leads.", registry=registry
        )
        self.reconciles = Histogram(
            "rlfleet_reconcile_seconds", "Duration of a reconcile.", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.failures = Counter(
            "rlfleet_reconcile_failures", "Reconciles that ended with an error.", ("kind",),
            registry=registry,
        )  # fmt: skip
        self.calls = Counter(
            "rlfleet_worker_calls", "Calls to workers by outcome.", ("kind", "outcome"),
            registry=registry,
        )  # fmt: skip
        self.writes = Counter(
            "rlfleet_api_writes", "Writes to the Kubernetes API.", ("kind",), registry=registry
        )
        self.queue_depth = Gauge(
            "rlfleet_queue_depth", "Fleets that wait for a reconcile.", registry=registry
        )
        self.queue_stuck = Gauge(
            "rlfleet_queue_stuck_seconds",
            "Longest time that a fleet has been due, or being reconciled.", registry=registry,
        )  # fmt: skip
        self.left_to_others = Gauge(
            "rlfleet_fleets_of_other_operators",
            "Fleets in the watched namespaces that another release drives.", registry=registry,
        )  # fmt: skip
        self._replicas = Gauge(
            "rlfleet_fleet_replicas", "Workers of a fleet by state.", (*_FLEET, "state"),
            registry=registry,
        )  # fmt: skip
        self._versions = Gauge(
            "rlfleet_fleet_version_info",
            "Desired and applied version of a fleet, their runs, and the applied digest.",
            (*_FLEET, "desired", "applied", "desired_run_id", "applied_run_id", "applied_digest"),
            registry=registry,
        )  # fmt: skip
        self._phases = Histogram(
            "rlfleet_rollout_phase_seconds", "Duration of the phases of applied rollouts.",
            (*_FLEET, "phase"), buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._pauses = Histogram(
            "rlfleet_rollout_worker_pause_seconds", "Longest pause of a worker in a rollout.",
            _FLEET, buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._superseded = Gauge(
            "rlfleet_rollout_superseded_versions", "Versions overtaken before they were applied.",
            _FLEET, registry=registry,
        )  # fmt: skip
        self._changed = Gauge(
            "rlfleet_rollout_changed_share",
            "Share of the model's elements that the last applied version changed, at the precision "
            "that is served; smallest and largest over the workers, absent if none could compare.",
            (*_FLEET, "bound"), registry=registry,
        )  # fmt: skip
        self._shown: dict[FleetKey, tuple[str, ...]] = {}

    def render(self) -> bytes:
        """All series in the Prometheus text format."""
        return generate_latest(self._registry)

    def show_fleet(self, key: FleetKey, status: FleetStatus) -> None:
        """Take over a fleet's status."""
        counts = status.workers
        for state in _STATES:
            self._replicas.labels(*key, state).set(getattr(counts, state))
        applied = status.applied if status.applied_version else None
        shown = (
            status.desired_version or "",
            status.applied_version or "",
            status.desired_run_id or "",
            (applied.run_id if applied else None) or "",
            short(applied.digest) if applied and applied.digest else "",
        )
        if (before := self._shown.get(key)) != shown:
            if before is not None:
                self._versions.remove(*key, *before)
            self._versions.labels(*key, *shown).set(1)
            self._shown[key] = shown

    def show_rollout(self, key: FleetKey, status: WeightsStatus) -> None:
        """Count a rollout that has just been applied."""
        timings = status.timings
        for phase in ("stage", "pause", "load", "resume", "total"):
            seconds = getattr(timings, f"{phase}_seconds")
            self._phases.labels(*key, phase).observe(seconds)
        self._pauses.labels(*key).observe(timings.max_worker_pause_seconds)
        self._superseded.labels(*key).set(status.superseded_versions)
        self._changed.remove_by_labels({"namespace": key[0], "fleet": key[1]})
        effect = status.effect
        if effect is not None and effect.min_changed_share is not None:
            self._changed.labels(*key, "min").set(effect.min_changed_share)
        if effect is not None and effect.max_changed_share is not None:
            self._changed.labels(*key, "max").set(effect.max_changed_share)

    def forget_fleet(self, key: FleetKey) -> None:
        """Drop the series of a fleet that is gone."""
        labels = {"namespace": key[0], "fleet": key[1]}
        for metric in (
            self._replicas,
            self._versions,
            self._phases,
            self._pauses,
            self._superseded,
            self._changed,
        ):
            metric.remove_by_labels(labels)
        self._shown.pop(key, None)
