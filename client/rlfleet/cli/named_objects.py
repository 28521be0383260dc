"""The Secrets, claims and other objects that a spec names, and those of them that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from rlfleet.cli import inspection
from rlfleet.cli.api import Api
from rlfleet.errors import NotFound, RlfleetError
from rlfleet.ports import Json

PLURALS = {
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Secret": "secrets",
    "ConfigMap": "configmaps",
    "ServiceAccount": "serviceaccounts",
}
_BY_FIELD = {
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    "secret": ("Secret", "secretName"),
    "objectStore": ("Secret", "secretName"),
    "secretKeyRef": ("Secret", "name"),
    "secretRef": ("Secret", "name"),
    "nodePublishSecretRef": ("Secret", "name"),
    "configMap": ("ConfigMap", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMapRef": ("ConfigMap", "name"),
}
"""Field of a fleet or pod → the kind that it names, and where the name is. Source: Kubernetes API, core/v1."""
_OWN_NAME = ("metadata", "name")
_SECRETS_OF: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    ("external-secrets.io", "ExternalSecret"): (("spec", "target", "name"), _OWN_NAME),
    ("bitnami.com", "SealedSecret"): (("spec", "template", "metadata", "name"), _OWN_NAME),
    ("cert-manager.io", "Certificate"): (("spec", "secretName"),),
    ("onepassword.com", "OnePasswordItem"): (_OWN_NAME,),
    ("secrets.hashicorp.com", "VaultStaticSecret"): (("spec", "destination", "name"),),
    ("secrets.hashicorp.com", "VaultDynamicSecret"): (("spec", "destination", "name"),),
    ("secrets.hashicorp.com", "VaultPKISecret"): (("spec", "destination", "name"),),
}
"""API group and kind of an object from which a controller makes a Secret → where its name is; the first one counts.

Source: the CRDs of External Secrets, Sealed Secrets, cert-manager, and the operators of 1Password and Vault.
"""


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
            if name and isinstance(name, str) and not value.get("optional"):
                yield Named(kind, name, where)
        else:
            yield from named_by(value, where)


def made_by(body: Json) -> Iterator[tuple[str, str]]:
    """Kind and name of the Secret that a controller makes from an object, if it makes one."""
    group = str(body.get("apiVersion", "")).partition("/")[0]
    for path in _SECRETS_OF.get((group, str(body.get("kind"))), ()):
        name: Any = body
        for field in path:
            name = name.get(field) if isinstance(name, dict) else None
        if isinstance(name, str) and name:
            yield "Secret", name
            return


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
