"""The worker's own metrics, `rlfleet_worker_*`, served together with vLLM's on `/metrics`.

`StateGauges` adds the gauges. Labels come from fixed sets, except for versions, runs and adapter names,
which are few.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from fleet_worker.lifecycle.freshness import LAG_LABELS
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.protocol import Reason

PREFIX = "rlfleet_worker_"
PORTS = ("public", "admin", "metrics")
_SWAP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STAGE_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 900)


class WorkerMetrics:
    """Counters and histograms, written at each event. The texts on the page say what each one is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the counters and histograms."""
        self.registry = registry

        def histogram(name: str, text: str, buckets: Sequence[float] = _SWAP_BUCKETS) -> Histogram:
            return Histogram(PREFIX + name, text, registry=registry, buckets=buckets)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        self.paused = histogram("pause_seconds", "Seconds from a pause to the resume that ended it")
        self.loaded = histogram("load_seconds", "Seconds that a load took inside its pause")
        self._staged = histogram(
            "stage_seconds", "Seconds that checking and reading a version took", _STAGE_BUCKETS
        )
        self._read_bytes = counter(
            "stage_read_bytes",
            "Bytes that stages have read from the store; of a delta only what changed",
        )
        self._peer_bytes = counter(
            "stage_peer_bytes", "Bytes of versions that stages have read from peers"
        )
        self._refused = counter(
            "refusals", "Admin calls that were refused or failed, by reason", "reason"
        )
        self.turned_away = counter(
            "turned_away_requests",
            "Requests for the model that were refused because the latch was closed",
        )
        self.refused_connections = counter(
            "refused_connections",
            "New connections that ended at once, since all others of their port had a request",
            "port",
        )
        self.unlabelled = counter(
            "unlabelled_replies",
            "Replies with tokens whose weight version is unknown; must stay 0",
        )
        tokens = counter(
            "tokens",
            "Tokens of choices that have ended, by the number of versions that were desired after theirs",
            "lag",
        )
        self.stale = counter(
            "stale_requests", "Requests that were refused because the weights were too old"
        )
        self.held = counter("held_requests", "Requests that have waited for the end of a pause")
        self._tokens_by_lag = {lag: tokens.labels(lag=lag) for lag in LAG_LABELS}
        for reason in Reason:
            self._refused.labels(reason=reason.value)
        for port in PORTS:
            self.refused_connections.labels(port=port)

    def text(self) -> bytes:
        """All metrics of this process, with vLLM's, in the text format of `/metrics`."""
        return generate_latest(self.registry)

    def staged(self, weights: Weights) -> None:
        """Count a version that was staged."""
        self._staged.observe(weights.stage_seconds or 0.0)
        self._read_bytes.inc(weights.read_bytes or 0)
        self._peer_bytes.inc(weights.peer_bytes)

    def refused(self, reason: Reason) -> None:
        """Count an admin call that was refused or failed in the engine."""
        self._refused.labels(reason=reason.value).inc()

    def made(self, tokens: int, lag: str) -> None:
        """Count the tokens of an ended reply. `lag`: one of `LAG_LABELS`."""
        self._tokens_by_lag[lag].inc(tokens)
