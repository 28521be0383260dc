"""The worker's own metrics, `rlfleet_worker_*`, served together with vLLM's on `/metrics`.

`StateGauges` adds the gauges. Labels come from fixed sets, except for versions, runs and adapter names,
which are few.
"""

from __future__ import annotations

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
        self.paused = Histogram(
            PREFIX + "pause_seconds",
            "Seconds from a pause to the resume that ended it",
            registry=registry,
            buckets=_SWAP_BUCKETS,
        )
        self.loaded = Histogram(
            PREFIX + "load_seconds",
            "Seconds that a load took inside its pause",
            registry=registry,
            buckets=_SWAP_BUCKETS,
        )
        self._staged = Histogram(
            PREFIX + "stage_seconds",
            "Seconds that checking and reading a version took",
            registry=registry,
            buckets=_STAGE_BUCKETS,
        )
        self._read_bytes = Counter(
            PREFIX + "stage_read_bytes",
            "Bytes that stages have read from the store; of a delta only what changed",
            registry=registry,
        )
        self._peer_bytes = Counter(
            PREFIX + "stage_peer_bytes",
            "Bytes of versions that stages have read from peers",
            registry=registry,
        )
        self._refused = Counter(
            PREFIX + "refusals",
            "Admin calls that were refused or failed, by reason",
            ["reason"],
            registry=registry,
        )
        self.turned_away = Counter(
            PREFIX + "turned_away_requests",
            "Requests for the model that were refused because the latch was closed",
            registry=registry,
        )
        self.refused_connections = Counter(
            PREFIX + "refused_connections",
            "New connections that ended at once, since all others of their port had a request",
            ["port"],
            registry=registry,
        )
        self.unlabelled = Counter(
            PREFIX + "unlabelled_replies",
            "Replies with tokens whose weight version is unknown; must stay 0",
            registry=registry,
        )
        self._tokens = Counter(
            PREFIX + "tokens",
            "Tokens of choices that have ended, by the number of versions that were desired after theirs",
            ["lag"],
            registry=registry,
        )
        self.stale = Counter(
            PREFIX + "stale_requests",
            "Requests that were refused because the weights were too old",
            registry=registry,
        )
        self.held = Counter(
            PREFIX + "held_requests",
            "Requests that have waited for the end of a pause",
            registry=registry,
        )
        self._tokens_by_lag = {lag: self._tokens.labels(lag=lag) for lag in LAG_LABELS}
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
