"""Builds the router of a fleet: a Deployment of `vllm-router`, and its Service.

The router gets the workers' names in DNS as a list. It follows their readiness by `/readyz`, which
follows the latch. So it needs no account, no token and no rights.

Source: `vllm-router` 0.1.17, launcher arguments.
"""

from __future__ import annotations

from typing import Any

from fleet_operator.api.router import Router, RouterPolicy
from fleet_operator.core.manifests.hardening import hardened_container, hardened_pod
from fleet_operator.core.manifests.pods import owner_reference
from fleet_operator.core.observed import FleetObserved, RouterObject
from fleet_operator.core.percentages import unavailable_and_surge
from fleet_worker.protocol import READY_PATH
from rlfleet_resources import names

METRICS_PORT = 29_000
CHECKS_PER_SECOND = 200
"""Readiness checks of one replica; beyond that many workers it checks each less often."""
REQUEST_SECONDS = 86_400
"""Until the end of a reply. After half an hour, the router's own limit, it cuts a stream, and begins any
other generation again, up to five times."""
_ALL = "::"
"""All addresses of both families, if the kernel has IPv6."""
_START = f"""
import os, signal, socket, sys, time, urllib.request

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
every = "{_ALL}" if socket.has_dualstack_ipv6() else "0.0.0.0"
given = [every if word == "{_ALL}" else word for word in sys.argv[1:]]
workers = given[given.index("--worker-urls") + 1 :]


def is_ready(worker):
    try:
        return urllib.request.urlopen(worker + "{READY_PATH}", timeout=1).status == 200
    except Exception:
        return False


while not any(map(is_ready, workers)):
    time.sleep(1)
os.execvp("vllm-router", ["vllm-router", *given])
"""
"""Starts the router once a worker is ready: without one it would exit, and the kubelet would wait for up to
five minutes between its restarts. Nor can it listen on an address that its kernel does not have."""
_NO_LIMIT = 2**31 - 1
"""A fleet may have no worker for any time, so no number of failed startup probes ends the container."""
_CONTAINER = "router"
_POLICIES: dict[RouterPolicy, str] = {
    "StickyLeastLoaded": "sticky_least_loaded",
    "ConsistentHash": "consistent_hash",
    "CacheAware": "cache_aware",
    "PowerOfTwo": "power_of_two",
    "RoundRobin": "round_robin",
    "Random": "random",
}


def router_children(observed: FleetObserved) -> list[dict[str, Any]]:
    """Builds the Deployment and the Service of the router; empty without `spec.router`."""
    router = observed.spec.router
    return [] if router is None else [_deployment(observed, router), _service(observed)]


def unwanted(observed: FleetObserved) -> list[RouterObject]:
    """Returns the objects of this fleet's router that must go, because `spec.router` is gone."""
    if observed.spec.router is not None:
        return []
    return [o for o in observed.router.objects if o.owner == observed.uid]


def worker_urls(observed: FleetObserved) -> list[str]:
    """Returns an address for each ordinal that a worker can have, so that an update changes none.

    A name that no worker has is an unhealthy worker for the router.
    """
    _, surge = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    beyond = max((w.pod.ordinal + 1 for w in observed.workers), default=0)
    domain = f"{names.headless_service_name(observed.name)}.{observed.namespace}.svc"
    port = observed.spec.serving.port
    return [
        f"http://{names.pod_name(observed.name, ordinal)}.{domain}:{port}"
        for ordinal in range(max(observed.spec.replicas + surge, beyond))
    ]


def arguments(router: Router, urls: list[str], port: int) -> list[str]:
    """Returns the arguments of the program `vllm-router`."""
    seconds = max(1, -(-len(urls) // CHECKS_PER_SECOND))
    return [
        *("--host", _ALL, "--port", str(port)),
        *("--policy", _POLICIES[router.policy]),
        *("--health-check-endpoint", READY_PATH),
        *("--health-check-interval-secs", str(seconds)),
        *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
        # The router would wait for the slowest worker that long before it listens.
        *("--worker-startup-timeout-secs", "1", "--worker-startup-check-interval", "1"),
        # It would keep a worker out for a minute after it is good again. Readiness decides alone.
        "--disable-circuit-breaker",
        *("--request-timeout-secs", str(REQUEST_SECONDS)),
        *("--prometheus-host", _ALL, "--prometheus-port", str(METRICS_PORT)),
        "--worker-urls",
        *urls,
    ]


def _deployment(observed: FleetObserved, router: Router) -> dict[str, Any]:
    port = observed.spec.serving.port
    container = {
        "name": _CONTAINER,
        "image": router.image,
        "command": ["python3", "-c", _START],
        "args": arguments(router, worker_urls(observed), port),
        "ports": [
            {"name": "http", "containerPort": port},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "readinessProbe": {"httpGet": {"path": "/readiness", "port": "http"}, "periodSeconds": 2},
        "startupProbe": {
            "httpGet": {"path": "/liveness", "port": "http"},
            "periodSeconds": 2,
            "failureThreshold": _NO_LIMIT,
        },
        "livenessProbe": {"httpGet": {"path": "/liveness", "port": "http"}},
        "securityContext": hardened_container(),
    }
    if resources := router.resources.to_json():
        container["resources"] = resources
    pod = {
        **hardened_pod(),
        "containers": [container],
    }
    spec = {
        "replicas": router.replicas,
        "selector": {"matchLabels": names.router_selector(observed.name)},
        # The next replica is ready before one goes.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        },
        "template": {"metadata": {"labels": names.router_selector(observed.name)}, "spec": pod},
    }
    return _object(observed, "apps/v1", "Deployment") | {"spec": spec}


def _service(observed: FleetObserved) -> dict[str, Any]:
    port = observed.spec.serving.port
    spec = {
        "type": "ClusterIP",
        "selector": names.router_selector(observed.name),
        "ports": [{"name": "http", "port": port, "targetPort": "http"}],
    }
    return _object(observed, "v1", "Service") | {"spec": spec}


def _object(observed: FleetObserved, api_version: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": names.router_name(observed.name),
            "namespace": observed.namespace,
            "labels": names.router_labels(observed.name),
            "ownerReferences": [owner_reference(observed)],
        },
    }
