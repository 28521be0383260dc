"""The gauges of a worker's state, computed at the scrape.

So they are never stale; vLLM's own gauges freeze during a pause.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet_worker.lifecycle.metrics import PREFIX
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import Phase


class StateGauges(Collector):
    """The gauges of one worker; register it in the registry of its metrics."""

    def __init__(self, agent: Worker) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        """Return the gauges of this moment."""
        agent = self._agent
        phases = GaugeMetricFamily(
            PREFIX + "phase", "1 for the phase that the worker is in", labels=["phase"]
        )
        for phase in Phase:
            phases.add_metric([phase.value], float(agent.standing.phase is phase))
        yield phases
        version = GaugeMetricFamily(
            PREFIX + "version_info",
            "1 for the weights in the engine; absent while they cannot be trusted",
            labels=["version", "run_id", "digest"],
        )
        if (weights := agent.name) is not None:
            named = [weights.version, weights.run_id or "", weights.digest or ""]
            version.add_metric(named, 1)
        yield version
        adapters = GaugeMetricFamily(
            PREFIX + "adapter_info",
            "1 for the served version of each LoRA adapter",
            labels=["adapter", "version"],
        )
        for adapter in agent.adapters.states():
            if adapter.version is not None:
                adapters.add_metric([adapter.name, adapter.version], 1)
        yield adapters
        changed = GaugeMetricFamily(
            PREFIX + "changed_share",
            "Share of the model's elements that the last load changed, at the served precision;"
            " absent before the first load and when the weights cannot be compared",
        )
        if (effect := agent.effect) is not None and effect.changed_share is not None:
            changed.add_metric([], effect.changed_share)
        yield changed
        lease, slots = agent.lease, agent.adapters.slots
        gauges = (
            ("admitted", "Whether the latch is open", float(agent.is_open)),
            ("requests_held", "Requests that a pause holds", agent.requests()[1]),
            (
                "paused_seconds",
                "Seconds since the current pause began; 0 without a pause",
                agent.clock() - lease.since if lease is not None else 0,
            ),
            (
                "adapter_slots",
                "Slots for versions of LoRA adapters",
                slots.total if slots else 0,
            ),
            (
                "adapter_slots_used",
                "Slots with a version of a LoRA adapter",
                slots.used if slots else 0,
            ),
        )
        yield CounterMetricFamily(
            PREFIX + "lease_expiries",
            "Pauses that ended because their lease was not renewed",
            value=agent.lease_expiries,
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(PREFIX + name, text, value=float(value))
