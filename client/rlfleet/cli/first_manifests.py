"""The manifests of a first fleet, and the settings of its trainer: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from rlfleet.cli.api_place import OF_THE_PAGES, ApiPlace
from rlfleet.cli.sizes import CPU_CACHE_GIB, Sizes
from rlfleet.cli.trainer_settings import SETTINGS, Trainer
from rlfleet.ports import Json
from rlfleet_resources.names import API_VERSION, GROUP, admin_token_secret_name

ROOT = "/weights"
RUN = "run-1"
HUB_CREDENTIAL = "hf-token"
_IMAGE = "python:3.11-slim"
_USER = 1000
"""As workers."""
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFleet:
    """The fleet of the manifests.

    Fields:
        repository: that the model is downloaded from; None if its directory exists.
        path: directory of the model, as workers see it.
        claim: name of the volume claim; `is_new` if it is written, too.
        storage_class: of a new claim; None for the cluster's default.
        image: of workers; None for that of the chart.
        rl_api: the RL API that the trainer calls, and that calls the workers of an External fleet.
    """

    name: str
    namespace: str
    model: str
    repository: str | None
    revision: str
    path: str
    replicas: int
    sizes: Sizes
    claim: str
    is_new: bool
    storage_class: str | None
    trainer: Trainer
    image: str | None = None
    rl_api: ApiPlace = OF_THE_PAGES

    @property
    def uses_rl_api(self) -> bool:
        """Whether the settings or the rights name the RL API."""
        return _is_external(self) or "$api" in SETTINGS[self.trainer].text

    @property
    def account(self) -> str:
        """The service account of the trainer."""
        return f"{self.name}-trainer"

    @property
    def job(self) -> str:
        """The Job that downloads the model."""
        return f"{self.name}-download"


def files_of(first: FirstFleet) -> dict[str, str]:
    """Name below the folder → text."""
    settings = SETTINGS[first.trainer]
    made: dict[str, str] = {}
    if first.is_new:
        note = "The model, and what the trainer writes. Workers and trainer are on many nodes."
        made["storage.yaml"] = _text(note, [_claim(first)])
    if first.repository is not None:
        note = (
            f"Downloads the model into the volume. A gated model needs a Secret {HUB_CREDENTIAL} with the "
            "key `token`.\n# The pod needs the network: for pip, and for the Hub."
        )
        made["download.yaml"] = _text(note, [_download(first)])
    made["trainer.yaml"] = _text("The account of the trainer, and its rights.", _rights(first))
    note = "The workers, and the pointer to their weights."
    if not _is_external(first):
        note += (
            "\n# A trainer moves the pointer. Remove it from this file then: applied again, it goes back to "
            "version 0."
        )
    made["fleet.yaml"] = _text(note, [_fleet(first), *_weights(first)])
    names = {
        "name": first.name,
        "namespace": first.namespace,
        "account": first.account,
        "claim": first.claim,
        "root": ROOT,
        "run": f"{ROOT}/{RUN}",
        "api": first.rl_api.url,
    }
    made[f"trainer/{settings.file}"] = settings.filled(names)
    return made


def _is_external(first: FirstFleet) -> bool:
    return (SETTINGS[first.trainer].weights or {}).get("management") == "External"


def _object(first: FirstFleet, version: str, kind: str, name: str, **fields: Any) -> Json:
    metadata = {"name": name, "namespace": first.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def _claim(first: FirstFleet) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{first.sizes.storage}Gi"}},
    }
    if first.storage_class is not None:
        spec["storageClassName"] = first.storage_class
    return _object(first, "v1", "PersistentVolumeClaim", first.claim, spec=spec)


def _download(first: FirstFleet) -> Json:
    variables = {
        "REPOSITORY": first.repository,
        "REVISION": first.revision,
        "TARGET": first.path,
        "TOOLS": "/tmp/hub",  # noqa: S108 - in a container of its own
    }
    token = {"secretKeyRef": {"name": HUB_CREDENTIAL, "key": "token", "optional": True}}
    container = {
        "name": "download",
        "image": _IMAGE,
        "command": ["sh", "-c", files("rlfleet.cli").joinpath("download.sh").read_text("utf-8")],
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            {"name": "HF_TOKEN", "valueFrom": token},
        ],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "weights", "mountPath": ROOT}],
    }
    pod = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [_volume(first)],
    }
    return _object(first, "batch/v1", "Job", first.job, spec={"template": {"spec": pod}})


def _volume(first: FirstFleet) -> Json:
    return {"name": "weights", "persistentVolumeClaim": {"claimName": first.claim}}


def _rights(first: FirstFleet) -> list[Json]:
    """Source: docs/reference/rbac.md."""

    def rule(resource: str, *verbs: str) -> Json:
        allowed = {"resources": [resource], "resourceNames": [first.name], "verbs": [*verbs]}
        return {"apiGroups": [GROUP], **allowed}

    own = (
        rule("inferencefleets/control", "update")
        if _is_external(first)
        else rule("weightversions", "get", "list", "watch", "patch")
    )
    subject = {"kind": "ServiceAccount", "name": first.account, "namespace": first.namespace}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": first.account}
    version = f"{_RBAC}/v1"
    rules = [own, rule("inferencefleets", "get")]
    granted = _grant(first) if _is_external(first) else []
    return [
        _object(first, "v1", "ServiceAccount", first.account),
        _object(first, version, "Role", first.account, rules=rules),
        _object(first, version, "RoleBinding", first.account, roleRef=role, subjects=[subject]),
        *granted,
    ]


def _grant(first: FirstFleet) -> list[Json]:
    """Lets the RL API call the workers: it signs with the fleet's admin token, and may read no other Secret."""
    name, version = f"{first.name}-control", f"{_RBAC}/v1"
    secret = admin_token_secret_name(first.name)
    rule = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [secret],
        "verbs": ["get"],
    }
    role = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    account, namespace = first.rl_api.account, first.rl_api.namespace
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return [
        _object(first, version, "Role", name, rules=[rule]),
        _object(first, version, "RoleBinding", name, roleRef=role, subjects=[subject]),
    ]


def _fleet(first: FirstFleet) -> Json:
    sizes, settings = first.sizes, SETTINGS[first.trainer]
    engine: Json = {"image": first.image} if first.image is not None else {}
    arguments = [f"--max-model-len={sizes.longest}"] if sizes.longest is not None else []
    if arguments := [*arguments, *settings.arguments]:
        engine["args"] = arguments
    limits: Json = {"memory": f"{sizes.memory}Gi"}
    if sizes.gpus:
        limits["nvidia.com/gpu"] = sizes.gpus
        engine["tensorParallelSize"] = sizes.tensor_parallel
        if sizes.pipeline_parallel > 1:
            engine["pipelineParallelSize"] = sizes.pipeline_parallel
    else:
        engine["env"] = [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": str(CPU_CACHE_GIB)}]
    weights = {
        "roots": [ROOT],
        "stagingMemory": f"{sizes.staging}Gi",
        "volumes": [_volume(first) | {"mountPath": ROOT}],
    }
    spec = {
        "replicas": first.replicas,
        "model": {"name": first.model, "source": {"path": first.path}},
        "engine": engine,
        "resources": {"limits": limits},
        "weights": weights | (settings.weights or {}),
    }
    return _object(first, API_VERSION, "InferenceFleet", first.name, spec=spec)


def _weights(first: FirstFleet) -> Iterator[Json]:
    """The model is version 0 of the first run. None if the trainer drives the workers itself."""
    if _is_external(first):
        return
    spec = {
        "fleetRef": {"name": first.name},
        "runID": RUN,
        "version": "0",
        "source": {"path": first.path},
    }
    yield _object(first, API_VERSION, "WeightVersion", first.name, spec=spec)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable."""

    def ignore_aliases(self, _: Any) -> bool:
        """No anchors."""
        return True


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def _text(note: str, objects: list[Json]) -> str:
    return f"# {note}\n{yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=200)}"
