"""The worker pod of a fleet, built purely from its spec.

Restricted by default: non-root, read-only root, no capabilities, no API token. Where pods run comes
from `spec.pod`; what else a site needs is laid over the pod by `podOverlay`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fleet_operator.api import names
from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.source import WeightSource
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.overlay import merge
from fleet_operator.core.pod_fields import mounts, pod_fields, resources, variables, volumes
from fleet_operator.core.quantities import bytes_of, comparable, comparable_resources
from fleet_worker import protocol

USER_ID = 1000
TERMINATION_GRACE_SECONDS = 60
"""Beyond the drain timeout: for ending what has outlived it, and for an engine that hangs."""
LOST_NODE_SECONDS = 60
"""After this long without its node a worker is deleted, to be made anew elsewhere."""
START_LIMIT_SECONDS = 3600
"""Loading a large model from a cold shared file system takes long; the probe asks each second."""
TOKEN_FOLDER = "/var/run/rlfleet"  # noqa: S105 - a path, not a secret
_OWN_VARIABLES = "RLFLEET_"
_NOT_OF_PODS: dict[str, Any] = {
    **dict.fromkeys(
        ("replicas", "progress_deadline_seconds", "rollout", "update", "recycle"), True
    ),
    "serving": {"service"},
}
"""Fields of a fleet's spec that change no pod. `update.restartedAt` is added."""
_NOT_OVERLAID = ("args", "ports", "readinessProbe", "lifecycle")


def revision_of(observed: FleetObserved) -> str:
    """Hash over what the fleet's own spec says of its pods; a pod with another one is out of date.

    Neither the operator's release nor its default image are part of it, nor are defaults of the API:
    a field that a later release adds changes no hash. Quantities count as amounts.
    """
    spec = observed.spec
    said = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_OF_PODS)
    if not spec.adapters.max:
        said.pop("adapters", None)  # the rank of no adapters
    named = [_without_empty(_with_amounts(said)), spec.update.restarted_at]
    canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _with_amounts(said: dict[str, Any]) -> dict[str, Any]:
    made = dict(said)
    if "resources" in said:
        made["resources"] = comparable_resources(said["resources"])
    if memory := said.get("weights", {}).get("stagingMemory"):
        made["weights"] = said["weights"] | {"stagingMemory": comparable(memory)}
    return made


def _without_empty(said: dict[str, Any]) -> dict[str, Any]:
    """Without objects of which nothing is left but defaults."""
    kept = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in said.items()}
    return {k: v for k, v in kept.items() if v != {}}


def build_pod(
    observed: FleetObserved, ordinal: int, default_image: str, *, revision: str
) -> dict[str, Any]:
    """The manifest of one worker, from a template of today."""
    return pod_of(observed, template_of(observed, default_image), ordinal, revision=revision)


def template_of(observed: FleetObserved, default_image: str) -> dict[str, Any]:
    """What all workers of a fleet have in common, as the spec asks for it: metadata and spec of a pod.

    Source: Kubernetes core/v1 PodTemplateSpec.
    """
    worker = _container(observed, default_image)
    pod: dict[str, Any] = {
        "metadata": _restart_mark(observed.spec),
        "spec": {
            # A Service named `vllm` would otherwise set VLLM_PORT, which kills the engine.
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [worker],
            "volumes": _volumes(observed),
        }
        | pod_fields(observed.spec, observed.name),
    }
    merged: dict[str, Any] = merge(pod, observed.spec.pod_overlay)
    # Written after the overlay: these tie the worker to its latch.
    merged["spec"]["tolerations"] = _with_lost_nodes(merged["spec"].get("tolerations", []))
    for container in merged["spec"]["containers"]:
        if container["name"] == names.WORKER_CONTAINER:
            container.update({key: worker[key] for key in _NOT_OVERLAID})
            container["env"] = _with_own_variables(container["env"], worker["env"])
    made: dict[str, Any] = json.loads(json.dumps(merged))
    return made


def pod_of(
    observed: FleetObserved, template: Mapping[str, Any], ordinal: int, *, revision: str
) -> dict[str, Any]:
    """The manifest of one worker, from a template.

    The drain timeout is no part of the template: a change of it replaces no worker.

    Source: Kubernetes core/v1 Pod.
    """
    name = names.pod_name(observed.name, ordinal)
    pod: dict[str, Any] = json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}))
    # Whatever the template says: these tie the pod to its fleet.
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = name
    metadata["namespace"] = observed.namespace
    metadata["labels"] = (
        metadata.get("labels", {})
        | names.fleet_labels(observed.name)
        | {
            names.LABEL_ORDINAL: str(ordinal),
            names.LABEL_REVISION: revision,
            names.LABEL_TRAFFIC: names.TRAFFIC_ALLOWED,
        }
    )
    metadata["ownerReferences"] = [owner_reference(observed)]
    spec["hostname"] = name
    spec["subdomain"] = names.headless_service_name(observed.name)
    seconds = observed.spec.update.drain_timeout_seconds
    # A time of the overlay's own holds, even if it is too short for a drain.
    spec.setdefault("terminationGracePeriodSeconds", seconds + TERMINATION_GRACE_SECONDS)
    for container in spec["containers"]:
        if container["name"] == names.WORKER_CONTAINER:
            container["env"].append({"name": protocol.ENV_DRAIN_SECONDS, "value": str(seconds)})
    return pod


def _restart_mark(spec: FleetSpec) -> dict[str, Any]:
    """As `kubectl rollout restart` leaves it on the pods of a Deployment."""
    asked = spec.update.restarted_at
    return {"annotations": {names.ANNOTATION_RESTARTED_AT: asked}} if asked else {}


def _with_lost_nodes(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The overlay's tolerations, and how long a lost node is waited for, unless it says so itself.

    The cluster's default of five minutes is long for a trainer that waits.
    """
    told = {t.get("key") for t in tolerations}
    keys = (f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable"))
    own = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for key in keys
        if key not in told
    ]
    return [*tolerations, *own]


def owner_reference(observed: FleetObserved) -> dict[str, Any]:
    """Lets the garbage collector delete everything with the fleet."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.FLEET_KIND,
        "name": observed.name,
        "uid": observed.uid,
        "controller": True,
    }


def _container(observed: FleetObserved, default_image: str) -> dict[str, Any]:
    spec = observed.spec
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
        ],
        "resources": resources(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # What it logged last says why it ended; people read it in the fleet's condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe(spec, protocol.LIVE_PATH, 1, START_LIMIT_SECONDS),
        "livenessProbe": _probe(spec, protocol.LIVE_PATH, 10, 3) | {"timeoutSeconds": 5},
        # A refusal or a 503 counts at once; a busy machine may take its time to answer.
        "readinessProbe": _probe(spec, protocol.READY_PATH, 1, 2) | {"timeoutSeconds": 5},
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-m", "fleet_worker", "drain"]}}},
        "volumeMounts": [
            *mounts(spec),
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
        f"$({protocol.ENV_ADMIN_HOST})",
        "--metrics-port",
        str(spec.serving.metrics_port),
    ]
    for root in spec.weights.roots:
        arguments += ["--weights-root", root]
    if spec.weights.management == "External":
        arguments += ["--weights-management", "External"]
    arguments += _limits(spec)
    if spec.adapters.max:
        # A slot more than there are adapters: a version goes in while the one before still runs.
        arguments += ["--max-loras", str(spec.adapters.max + 1)]
        arguments += ["--max-lora-rank", str(spec.adapters.max_rank)]
    engine = [
        f"--tensor-parallel-size={spec.engine.tensor_parallel_size}",
        f"--pipeline-parallel-size={spec.engine.pipeline_parallel_size}",
    ]
    return [*arguments, "--", *engine, *spec.engine.args]


def _limits(spec: FleetSpec) -> list[str]:
    """Options of the worker for what the fleet sets; the others keep the worker's own defaults."""
    weights, engine = spec.weights, spec.engine
    memory = weights.staging_memory
    given = {
        "--weight-transfer-backend": weights.transfer.backend if weights.transfer else None,
        "--staging-memory-bytes": None if memory is None else bytes_of(memory),
        "--driver-lease-seconds": weights.driver_lease_seconds,
        "--silence-seconds": engine.silence_timeout_seconds,
        "--load-seconds": engine.load_timeout_seconds,
        "--log-level": engine.log_level.lower() if engine.log_level else None,
        "--log-format": engine.log_format.lower() if engine.log_format else None,
    }
    set_ones = ((option, str(value)) for option, value in given.items() if value is not None)
    return [word for pair in set_ones for word in pair]


def _source_arguments(source: WeightSource) -> list[str]:
    if source.hugging_face is not None:
        return ["--model", source.hugging_face.repo, "--revision", source.hugging_face.revision]
    return ["--model", str(source.path)]


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
    ]
    # The kubelet reads the ConfigMap at every container start, so that a restarted worker starts
    # on what the fleet serves now, not on what it served when the pod was made.
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


def _with_own_variables(
    overlaid: list[dict[str, Any]], own: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The variables of an overlay, with those of the protocol as they were."""
    kept = {v["name"]: v for v in own if v["name"].startswith(_OWN_VARIABLES)}
    return [kept.get(v["name"], v) for v in overlaid]


def _own_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(spec: FleetSpec, path: str, period_seconds: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": spec.serving.admin_port},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
    }


def _volumes(observed: FleetObserved) -> list[dict[str, Any]]:
    secret = names.admin_token_secret_name(observed.name)
    return [
        *volumes(observed.spec),
        {"name": "admin-token", "secret": {"secretName": secret, "defaultMode": 0o444}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
