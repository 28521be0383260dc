"""The worker's own metrics, `rlfleet_worker_*`, beside vLLM's on the public `/metrics`.

What is a state is computed at the scrape, so that it cannot go stale (vLLM's own gauges freeze
while paused). Labels come from fixed sets, but for the version, of which there is one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet_worker.protocol import Phase, Reason

if TYPE_CHECKING:
    from fleet_worker.runtime.worker import Worker

_PREFIX = "rlfleet_worker_"
_SWAP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STAGE_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 900)


class WorkerMetrics:
    """Counters and histograms that are written as things happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with a registry."""
        self.registry = registry
        self._paused = Histogram(
            _PREFIX + "pause_seconds",
            "Seconds from a pause to the resume that ended it",
            registry=registry,
            buckets=_SWAP_BUCKETS,
        )
        self._loaded = Histogram(
            _PREFIX + "load_seconds",
            "Seconds that a load took inside its pause",
            registry=registry,
            buckets=_SWAP_BUCKETS,
        )
        self._staged = Histogram(
            _PREFIX + "stage_seconds",
            "Seconds that checking and reading a version took",
            registry=registry,
            buckets=_STAGE_BUCKETS,
        )
        self._refused = Counter(
            _PREFIX + "refusals",
            "Admin calls that were refused or failed, by reason",
            ["reason"],
            registry=registry,
        )
        self._turned_away = Counter(
            _PREFIX + "turned_away_requests",
            "Data requests answered 503 because the latch was closed",
            registry=registry,
        )
        self._unlabelled = Counter(
            _PREFIX + "unlabelled_replies",
            "Replies with tokens whose weight version is unknown; must stay 0",
            registry=registry,
        )
        for reason in Reason:
            self._refused.labels(reason=reason.value)

    def text(self) -> bytes:
        """All metrics of this process, vLLM's too, as `/metrics` shows them."""
        return generate_latest(self.registry)

    def watch(self, agent: Worker) -> None:
        """Also export the state of an agent."""
        self.registry.register(_StateCollector(agent))

    def paused(self, seconds: float) -> None:
        """A pause has ended."""
        self._paused.observe(seconds)

    def loaded(self, seconds: float) -> None:
        """A load has succeeded."""
        self._loaded.observe(seconds)

    def staged(self, seconds: float) -> None:
        """A version has been staged."""
        self._staged.observe(seconds)

    def refused(self, reason: Reason) -> None:
        """An admin call was refused, or failed in the engine."""
        self._refused.labels(reason=reason.value).inc()

    def turned_away(self) -> None:
        """A data request met a closed latch."""
        self._turned_away.inc()

    def unlabelled(self) -> None:
        """A reply went out without knowing what made its tokens."""
        self._unlabelled.inc()


class _StateCollector(Collector):
    def __init__(self, agent: Worker) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        agent = self._agent
        phases = GaugeMetricFamily(
            _PREFIX + "phase", "1 for the phase that the worker is in", labels=["phase"]
        )
        for phase in Phase:
            phases.add_metric([phase.value], float(agent.standing.phase is phase))
        yield phases
        version = GaugeMetricFamily(
            _PREFIX + "version_info",
            "1 for the weights in the engine; absent while they are not to be trusted",
            labels=["version", "run_id", "digest"],
        )
        if (weights := agent.name) is not None:
            named = [weights.version, weights.run_id or "", weights.digest or ""]
            version.add_metric(named, 1)
        yield version
        adapters = GaugeMetricFamily(
            _PREFIX + "adapter_info",
            "1 for the version of each adapter that requests get",
            labels=["adapter", "version"],
        )
        for adapter in agent.adapters.states():
            if adapter.version is not None:
                adapters.add_metric([adapter.name, adapter.version], 1)
        yield adapters
        changed = GaugeMetricFamily(
            _PREFIX + "changed_share",
            "Share of the model's elements that the last load changed, at the precision that is"
            " served; absent before the first load and where it is not comparable",
        )
        if (effect := agent.effect) is not None and effect.changed_share is not None:
            changed.add_metric([], effect.changed_share)
        yield changed
        lease, slots = agent.lease, agent.adapters.slots
        gauges = (
            ("admitted", "Whether the latch is open", float(agent.is_open)),
            ("requests_held", "Requests that wait for a resume", agent.requests()[1]),
            (
                "paused_seconds",
                "How long the present pause has lasted; 0 without one",
                agent.clock() - lease.since if lease is not None else 0,
            ),
            (
                "adapter_slots",
                "Versions of adapters that there is room for",
                slots.total if slots else 0,
            ),
            (
                "adapter_slots_used",
                "Versions of adapters in the engine",
                slots.used if slots else 0,
            ),
        )
        yield CounterMetricFamily(
            _PREFIX + "lease_expiries",
            "Pauses that nobody renewed in time",
            value=agent.lease_expiries,
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))
