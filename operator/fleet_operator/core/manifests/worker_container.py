"""The worker's container: its arguments, environment, ports and probes."""

from __future__ import annotations

from typing import Any

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.manifests.hardening import hardened_container
from fleet_operator.core.manifests.pod_fields import (
    mounts,
    resources,
    store_mounts,
    variables,
)
from fleet_operator.core.observed import FleetObserved
from fleet_worker import protocol
from rlfleet_resources import names
from rlfleet_resources.quantities import bytes_of
from rlfleet_resources.source import WeightSource

START_LIMIT_SECONDS = 3600
"""A large model loads slowly from a cold shared file system. The probe runs once a second."""
_CERT_REQUIRED = "2"
"""A value of vLLM's `--ssl-cert-reqs`, which has the numbers of Python's `ssl.CERT_REQUIRED`."""
TOKEN_FOLDER = "/var/run/rlfleet"  # noqa: S105 - a path, not a secret
STORE_FOLDER = "/var/run/rlfleet-store"


def worker_container(observed: FleetObserved, default_image: str) -> dict[str, Any]:
    """Returns the container of every worker of a fleet, before the overlay."""
    spec, peers = observed.spec, observed.spec.weights.peers
    return {
        "name": names.WORKER_CONTAINER,
        "image": spec.engine.image or default_image,
        # The image's entry point is `python3 -m fleet_worker`.
        "args": ["serve", *_arguments(spec)],
        **_environment(observed),
        "ports": [
            {"name": "http", "containerPort": spec.serving.port},
            {"name": "admin", "containerPort": spec.serving.admin_port},
            {"name": "metrics", "containerPort": spec.serving.metrics_port},
            *([{"name": "peers", "containerPort": peers.port}] if peers.enabled else []),
        ],
        "resources": resources(spec),
        "securityContext": hardened_container() | {"readOnlyRootFilesystem": True},
        # The conditions of the fleet show the last log lines, which say why the worker ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe(spec.serving.admin_port, protocol.LIVE_PATH, 1, START_LIMIT_SECONDS),
        "livenessProbe": _probe(spec.serving.admin_port, protocol.LIVE_PATH, 10, 3)
        | {"timeoutSeconds": 5},
        # Two failures are enough, but a worker on a busy machine has 5 s to answer.
        "readinessProbe": _readiness(spec) | {"timeoutSeconds": 5},
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-m", "fleet_worker", "drain"]}}},
        "volumeMounts": [
            *mounts(spec),
            *store_mounts(spec, STORE_FOLDER),
            {"name": "admin-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        ],
    }


def _arguments(spec: FleetSpec) -> list[str]:
    arguments = [*_source_arguments(spec.model.source)]
    arguments += ["--served-model-name", spec.model.name, "--version", spec.model.version]
    arguments += ["--port", str(spec.serving.port)]
    arguments += [
        "--admin-host",
        f"$({protocol.ENV_ADMIN_HOST})",
        "--admin-port",
        str(spec.serving.admin_port),
        "--metrics-host",
        "*",
        "--metrics-port",
        str(spec.serving.metrics_port),
    ]
    for root in spec.weights.roots:
        arguments += ["--weights-root", root]
    if spec.is_external:
        arguments += ["--weights-management", "External"]
    arguments += _limits(spec)
    if spec.adapters.max:
        # One more slot than adapters: a version loads while requests still use the one before.
        arguments += ["--max-loras", str(spec.adapters.max + 1)]
        arguments += ["--max-lora-rank", str(spec.adapters.max_rank)]
    engine = [
        f"--tensor-parallel-size={spec.engine.tensor_parallel_size}",
        f"--pipeline-parallel-size={spec.engine.pipeline_parallel_size}",
    ]
    return [*arguments, "--", *engine, *spec.engine.args]


def _limits(spec: FleetSpec) -> list[str]:
    """Worker options for the fields that the fleet sets; the worker has defaults for the others."""
    weights, engine = spec.weights, spec.engine
    memory, peers = weights.staging_memory, weights.peers
    rate = peers.bytes_per_second if peers.enabled else None
    given = {
        "--weight-transfer-backend": weights.transfer.backend if weights.transfer else None,
        "--loading": None if weights.loading == "Full" else weights.loading,
        "--staging-memory-bytes": None if memory is None else bytes_of(memory),
        "--peer-port": peers.port if peers.enabled else None,
        "--peer-bytes-per-second": None if rate is None else bytes_of(rate),
        "--driver-lease-seconds": weights.driver_lease_seconds,
        "--silence-seconds": engine.silence_timeout_seconds,
        "--load-seconds": engine.load_timeout_seconds,
        "--log-level": engine.log_level.lower() if engine.log_level else None,
        "--log-format": engine.log_format.lower() if engine.log_format else None,
    }
    set_ones = ((option, str(value)) for option, value in given.items() if value is not None)
    return [word for pair in set_ones for word in pair]


def _source_arguments(source: WeightSource) -> list[str]:
    _, place, revision = source.key()
    return ["--model", place, *(["--revision", revision] if revision else [])]


def _environment(observed: FleetObserved) -> dict[str, Any]:
    spec = observed.spec
    applied = names.applied_config_map_name(observed.name)
    own: list[dict[str, Any]] = [
        _own_field(protocol.ENV_ADMIN_HOST, "status.podIP"),
        _own_field(protocol.ENV_WORKER_NAME, "metadata.name"),
        _own_field(protocol.ENV_POD_UID, "metadata.uid"),
        {
            "name": protocol.ENV_ADMIN_TOKEN_FILE,
            "value": f"{TOKEN_FOLDER}/{names.ADMIN_TOKEN_KEY}",
        },
        {"name": protocol.ENV_ADMIN_PORT, "value": str(spec.serving.admin_port)},
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
        *_store_variables(spec),
    ]
    # The kubelet reads the ConfigMap at each start of the container. So a restarted worker starts
    # on the version that the fleet serves now, not on the one from the creation of the pod.
    for name, key in (
        (protocol.ENV_START_VERSION, names.APPLIED_VERSION_KEY),
        (protocol.ENV_START_PATH, names.APPLIED_PATH_KEY),
        (protocol.ENV_START_RUN_ID, names.APPLIED_RUN_ID_KEY),
        (protocol.ENV_START_DIGEST, names.APPLIED_DIGEST_KEY),
    ):
        reference = {"name": applied, "key": key, "optional": True}
        own.append({"name": name, "valueFrom": {"configMapKeyRef": reference}})
    made = variables(spec)
    # Ours come last: of two variables with one name the later one wins.
    return made | {"env": [*made["env"], *own]}


def _store_variables(spec: FleetSpec) -> list[dict[str, Any]]:
    store = spec.weights.object_store
    given = {
        protocol.ENV_STORE_KEYS: STORE_FOLDER if store is not None and store.secret_name else "",
        protocol.ENV_STORE_ENDPOINT: store.endpoint if store is not None else "",
    }
    return [{"name": name, "value": value} for name, value in given.items() if value]


def _own_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _readiness(spec: FleetSpec) -> dict[str, Any]:
    """Of the port that clients use, at the address of the pod. The fleet may have it serve TLS.

    The kubelet has no certificate. Where vLLM demands one of clients, the admin port answers: its page
    says, too, whether the port of the clients listens.
    """
    if spec.engine.options.get("--ssl-cert-reqs") == _CERT_REQUIRED:
        return _probe(spec.serving.admin_port, protocol.READY_PATH, 1, 2)
    probe = _probe(spec.serving.port, protocol.READY_PATH, 1, 2)
    if spec.engine.scheme == "https":
        probe["httpGet"]["scheme"] = "HTTPS"
    return probe


def _probe(port: int, path: str, period_seconds: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
    }
