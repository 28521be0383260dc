"""The Secrets, claims and other objects that a spec names, and those of them that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from rlfleet.cli import inspection
from rlfleet.cli.api import Api
from rlfleet.errors import NotFound, RlfleetError

PLURALS = {
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Secret": "secrets",
    "ConfigMap": "configmaps",
    "ServiceAccount": "serviceaccounts",
}
_BY_FIELD = {
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    "secret": ("Secret", "secretName"),
    "secretKeyRef": ("Secret", "name"),
    "secretRef": ("Secret", "name"),
    "nodePublishSecretRef": ("Secret", "name"),
    "configMap": ("ConfigMap", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMapRef": ("ConfigMap", "name"),
}
"""Field of a pod → the kind that it names, and where the name is. Source: Kubernetes API, core/v1."""


@dataclass(frozen=True, slots=True)
class Named:
    """An object that a field names."""

    kind: str
    name: str
    field: str


@dataclass(frozen=True, slots=True)
class Lacking:
    """An object that does not exist; with an error, one of which that cannot be seen."""

    named: Named
    error: RlfleetError | None = None


def named_by(spec: Any, field: str = "spec") -> Iterator[Named]:
    """The objects that a spec needs, in its order, without those that are `optional`."""
    if isinstance(spec, list):
        for number, one in enumerate(spec):
            yield from named_by(one, f"{field}[{number}]")
    for key, value in spec.items() if isinstance(spec, dict) else ():
        where = f"{field}.{key}"
        if key == "serviceAccountName" and isinstance(value, str):
            yield Named("ServiceAccount", value, where)
        elif key == "imagePullSecrets" and isinstance(value, list):
            names = [one.get("name") for one in value if isinstance(one, dict)]
            yield from (Named("Secret", name, where) for name in names if isinstance(name, str))
        elif key in _BY_FIELD and isinstance(value, dict):
            kind, field_of_name = _BY_FIELD[key]
            name = value.get(field_of_name, value.get("name"))
            if isinstance(name, str) and not value.get("optional"):
                yield Named(kind, name, where)
        else:
            yield from named_by(value, where)


def lacking(
    api: Api, namespace: str, spec: Any, given: Collection[tuple[str, str]]
) -> Iterator[Lacking]:
    """The objects that a spec names and the namespace lacks, each once.

    `given`: kind and name of objects that come with the spec. Of Secrets only the metadata is read.
    """
    seen = set(given)
    for one in named_by(spec):
        if (one.kind, one.name) in seen:
            continue
        seen.add((one.kind, one.name))
        path = f"/api/v1/namespaces/{namespace}/{PLURALS[one.kind]}/{one.name}"
        found = inspection.existence(api, path)
        if isinstance(found, NotFound):
            yield Lacking(one)
        elif isinstance(found, RlfleetError):
            yield Lacking(one, found)
