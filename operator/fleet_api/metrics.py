"""Metrics of one process of the RL API.

Labels come from the table of routes and fixed words. The log names the fleets: series of deleted ones would stay.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fleet_operator.own_ports.metrics_page import BUCKETS, MetricsPage


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "rlfleet_rl_api_requests", "Requests by route and status.", ("route", "method", "status"),
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "rlfleet_rl_api_request_seconds", "Time until the reply has ended.",
            ("route", "method"), buckets=BUCKETS, registry=registry,
        )  # fmt: skip
        self.in_work = Gauge(
            "rlfleet_rl_api_requests_in_work", "Running requests.", ("kind",), registry=registry
        )
        self.streams = Gauge(
            "rlfleet_rl_api_event_streams", "Open streams of events.", registry=registry
        )
        self.authentications = Counter(
            "rlfleet_rl_api_authentications", "Requests by the result of their authentication.",
            ("result",), registry=registry,
        )  # fmt: skip
        self.reviews = Counter(
            "rlfleet_rl_api_token_reviews", "Tokens of the cluster by whether their review was known.",
            ("cache",), registry=registry,
        )  # fmt: skip
        self.refused_connections = Counter(
            "rlfleet_rl_api_refused_connections",
            "New connections that ended at once, since all others had a request.",
            registry=registry,
        )
        self.changes = Counter(
            "rlfleet_rl_api_changes", "Authorized requests that may change something, by status.",
            ("route", "status"), registry=registry,
        )  # fmt: skip

    def observe(
        self, route: str, method: str, status: int, seconds: float, *, changes: bool
    ) -> None:
        """Count a request.

        Args:
            route: The path with the placeholders of its parameters; empty for an unknown path.
            method: The HTTP method.
            status: The HTTP status of the reply.
            seconds: The time until the end of the reply.
            changes: Whether the request was authorized and may change something.
        """
        method = method if route else "any"  # unknown methods have no bound
        self.requests.labels(route, method, status).inc()
        self.seconds.labels(route, method).observe(seconds)
        if changes:
            self.changes.labels(route, status).inc()

    def application(self) -> web.Application:
        """Serves `/metrics`."""
        return MetricsPage(lambda: partial(generate_latest, self._registry)).application()
