"""Metrics of one operator process: counters, durations and states of its own parts.

Labels come from fixed sets and from objects that exist, never from pods or versions, whose number
would grow without bound. `status_metrics` has the series of statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from platform import python_version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from fleet_operator.command_line import release
from fleet_operator.core.lagging import silent_workers
from fleet_operator.core.observed import FleetObserved
from fleet_operator.own_ports.metrics_page import BUCKETS
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.status_metrics import Replicas, Shown, StatusMetrics
from rlfleet_resources.weights_status import RolloutTimings, WeightsStatus

_FLEET = ("namespace", "fleet")
SILENT = "silent"
"""The outcome of a call without an answer. Its duration is a timeout, not a latency."""


class Metrics:
    """All series of one operator process."""

    def __init__(
        self, operator: str = "", *, namespaces: Iterable[str] = (), names_fleets: bool = True
    ) -> None:
        """
        Args:
            operator: Namespace and name of the Lease, as in the status of fleets.
            namespaces: Those that this operator watches; empty for all.
            names_fleets: Whether to show the series that name fleets and namespaces.
        """
        self._names_fleets = names_fleets
        self._statuses: StatusMetrics | None = None
        self._registry = registry = CollectorRegistry()
        self._fleets = fleets = CollectorRegistry()
        """The series that name fleets and namespaces."""
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=BUCKETS, registry=registry)
        self.leading = gauge(
            "rlfleet_operator_leading", "1 while this process leads.", ("operator",)
        ).labels(operator)
        watches = gauge(
            "rlfleet_operator_watches",
            "1 for each namespace that is watched; * for all, and ? for some that are not named.",
            ("namespace",),
        )
        if namespaces and not names_fleets:
            namespaces = ("?",)
        for namespace in namespaces or ("*",):
            watches.labels(namespace).set(1)
        self.reconciles = histogram("rlfleet_reconcile_seconds", "Duration of a reconcile.")
        self.failures = counter(
            "rlfleet_reconcile_failures", "Reconciles that ended with an error.", ("kind",)
        )
        calls = counter("rlfleet_worker_calls", "Calls to workers by outcome.", ("kind", "outcome"))
        self._calls = cache(calls.labels)
        durations = histogram(
            "rlfleet_worker_call_seconds", "Duration of calls that a worker answered.", ("kind",)
        )
        self._call_seconds = cache(durations.labels)
        self._silent = Gauge(
            "rlfleet_fleet_silent_workers",
            "Workers that run, have answered before, and do not answer the operator for 10 s.",
            _FLEET,
            registry=fleets,
        )
        self.writes = counter("rlfleet_api_writes", "Writes to the Kubernetes API.", ("kind",))
        requests = histogram(
            "rlfleet_api_request_seconds", "Duration of requests to the Kubernetes API.", ("verb",)
        )
        self._request_seconds = cache(requests.labels)
        self.queue_depth = gauge("rlfleet_queue_depth", "Fleets that wait for a reconcile.")
        self._waits = histogram(
            "rlfleet_queue_wait_seconds",
            "Time for which a fleet was due before its reconcile began.",
        )
        self._waited = Counter(
            "rlfleet_fleet_wait_seconds",
            "The same, summed for each fleet.",
            _FLEET,
            registry=fleets,
        )
        self.queue_stuck = gauge(
            "rlfleet_queue_stuck_seconds",
            "Longest time that a reconcile takes, or that fleets wait and none begins.",
        )
        self.loop_lag = gauge(
            "rlfleet_event_loop_lag_seconds",
            "Longest delay of the event loop in the last one to two minutes.",
        )
        self.loop_busy = gauge(
            "rlfleet_event_loop_busy_seconds",
            "The same, without time in which the process did not get the processor.",
        )
        self.left_to_others = gauge(
            "rlfleet_fleets_of_other_operators",
            "Fleets in the watched namespaces that another release drives.",
        )
        self._rollouts = Counter(
            "rlfleet_rollouts",
            "Rollouts that have ended, by result, and by the last reason of those that were not applied.",
            (*_FLEET, "kind", "result", "reason"),
            registry=fleets,
        )
        self._phases = Histogram(
            "rlfleet_rollout_phase_seconds", "Duration of the phases of applied rollouts.",
            (*_FLEET, "kind", "phase"), buckets=BUCKETS, registry=fleets,
        )  # fmt: skip
        self._pauses = Histogram(
            "rlfleet_rollout_worker_pause_seconds", "Longest pause of a worker in a rollout.",
            (*_FLEET, "kind"), buckets=BUCKETS, registry=fleets,
        )  # fmt: skip
        self._missing = gauge(
            "rlfleet_operator_crd_missing_fields",
            "What the CRD of the cluster does not permit of this operator's statuses.",
            ("resource",),
        )
        gauge(
            "rlfleet_build_info",
            "1 for the operator's release and its Python.",
            ("version", "python"),
        ).labels(release(), python_version()).set(1)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)

    def prepare(self) -> Callable[[], bytes]:
        """Returns what renders all series in the Prometheus text format, in any thread."""
        if not self._names_fleets:
            return partial(generate_latest, self._registry)
        if self._statuses is not None:
            self._statuses.take()
        return lambda: generate_latest(self._registry) + generate_latest(self._fleets)

    def render(self) -> bytes:
        """All series in the Prometheus text format."""
        return self.prepare()()

    def count_call(self, kind: str, outcome: str, seconds: float) -> None:
        """Count a call to a worker, and its time. `outcome`: from a fixed list."""
        self._calls(kind, outcome).inc()
        if outcome != SILENT:
            self._call_seconds(kind).observe(seconds)

    def count_wait(self, key: FleetKey, seconds: float) -> None:
        """Count the time for which a fleet was due before its reconcile began: for the share of its namespace."""
        self._waits.observe(seconds)
        self._waited.labels(*key).inc(seconds)

    def show_silent(self, key: FleetKey, observed: FleetObserved) -> None:
        """Show how many workers of a fleet are silent."""
        self._silent.labels(*key).set(silent_workers(observed))

    def show_missing(self, missing: Mapping[str, Sequence[str]]) -> None:
        """Show how many parts of statuses the CRDs do not permit, by resource. Empty: not known."""
        self._missing.clear()
        for resource, parts in missing.items():
            self._missing.labels(resource).set(len(parts))

    def count_request(self, verb: str, seconds: float) -> None:
        """Count a request to the Kubernetes API, and its time. `verb`: from a fixed list."""
        self._request_seconds(verb).observe(seconds)

    def show_statuses(self, shown: Callable[[], Iterable[Shown]], replicas: Replicas) -> None:
        """Compute series at each rendering. `shown`: the last status of each object."""
        self._statuses = StatusMetrics(shown, replicas)
        self._fleets.register(self._statuses)

    def count_rollouts(
        self, key: FleetKey, adapter: str, before: WeightsStatus, after: WeightsStatus
    ) -> None:
        """Count the rollouts that ended between two statuses of one WeightVersion."""
        if after.history == before.history:
            return
        kind = "lora" if adapter else "base"
        for entry in after.history:
            if entry in before.history:
                break  # the newest come first
            self._rollouts.labels(*key, kind, entry.result, entry.reason).inc()
            if entry.result == "Applied":
                self._observe(key, kind, after.timings)

    def _observe(self, key: FleetKey, kind: str, timings: RolloutTimings) -> None:
        for phase in ("stage", "pause", "load", "resume", "total"):
            seconds = getattr(timings, f"{phase}_seconds")
            self._phases.labels(*key, kind, phase).observe(seconds)
        self._pauses.labels(*key, kind).observe(timings.max_worker_pause_seconds)

    def forget_fleet(self, key: FleetKey) -> None:
        """Drop the series of a fleet that is gone. Those of its statuses go with the statuses."""
        labels = {"namespace": key[0], "fleet": key[1]}
        for metric in (self._rollouts, self._phases, self._pauses, self._silent, self._waited):
            metric.remove_by_labels(labels)
