"""The objects that the verbs read and write, and how to find the one that the user names."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rlfleet.access import find_access
from rlfleet.cli import rl_api
from rlfleet.cli.api import Api
from rlfleet.cli.pods import LABEL_FLEET, LABEL_ORDINAL, MANAGED
from rlfleet.errors import NotConfigured, NotFound
from rlfleet.follow import patiently
from rlfleet.kube import BlockingKube
from rlfleet.kubeconfig import load_access
from rlfleet.ports import Json, Kind, Place, run_blocking
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.rl_access import URL, RlAccess

FIELD_MANAGER = "rlfleet-cli"
_PATIENCE_SECONDS = 10.0
T = TypeVar("T")


def connect(
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    *,
    everywhere: bool = False,
) -> Api:
    """The API server, with the objects of a namespace, or of all. Errors: NotConfigured."""
    if rl_api.named().url is not None:
        raise NotConfigured("this verb needs the Kubernetes API; leave out --url")
    access = load_access(kubeconfig, context=context, namespace=namespace)
    if everywhere:
        access = dataclasses.replace(access, namespace="")
    return BlockingKube(access, FIELD_MANAGER)


def connect_fleet(
    name: str | None, namespace: str | None, context: str | None, kubeconfig: str | None
) -> Api:
    """The place of one fleet: the RL API, if options or the environment name it. Errors: NotConfigured."""
    api = rl_api.named()
    if api.url is None and (kubeconfig or context or not os.environ.get(URL)):
        return connect(namespace, context, kubeconfig)
    access = find_access(
        namespace=namespace,
        url=api.url,
        token_file=api.token_file,
        ca=api.ca,
        kubeconfig=kubeconfig,
        context=context,
    )
    if not isinstance(access, RlAccess):
        return BlockingKube(access, FIELD_MANAGER)
    if name is None:
        raise NotConfigured("the RL API shows one fleet; name the fleet")
    place = rl_api.FleetOfRlApi(access, name)
    api.closing.callback(lambda: run_blocking(place.close()))
    return place


def now() -> datetime:
    """The moment that ages are computed for."""
    return datetime.now(UTC)


def all_weights(objects: Place) -> list[WeightVersion]:
    """Every WeightVersion of the namespace."""
    found = _read(objects, lambda: objects.all(Kind.WEIGHTS))
    return [WeightVersion.model_validate(one) for one in found]


def all_fleets(objects: Place) -> list[InferenceFleet]:
    """Every fleet of the namespace."""
    found = _read(objects, lambda: objects.all(Kind.FLEETS))
    return [InferenceFleet.model_validate(one) for one in found]


def fleet_of(objects: Place, weights: WeightVersion) -> InferenceFleet | None:
    """The fleet of a WeightVersion, if it exists."""
    try:
        found = _read(objects, lambda: objects.get(Kind.FLEETS, weights.spec.fleet_ref.name))
    except NotFound:
        return None
    return InferenceFleet.model_validate(found)


def existing_fleet_of(objects: Place, weights: WeightVersion) -> InferenceFleet:
    """The fleet of a WeightVersion. Errors: NotFound."""
    if (fleet := fleet_of(objects, weights)) is None:
        raise NotFound(
            f"WeightVersion {weights.metadata.name!r} names the fleet "
            f"{weights.spec.fleet_ref.name!r}, which does not exist; create it"
        )
    return fleet


def find(objects: Place, name: str | None) -> WeightVersion:
    """The WeightVersion that a name means; without a name, the only one of the namespace.

    A fleet's name means the WeightVersion of its base weights.

    Errors: NotFound, with the names that exist.
    """
    if name is not None:
        try:
            return WeightVersion.model_validate(
                _read(objects, lambda: objects.get(Kind.WEIGHTS, name))
            )
        except NotFound:
            pass
    there = all_weights(objects)
    if name is None and len(there) == 1:
        return there[0]
    by_fleet = [w for w in there if w.spec.fleet_ref.name == name and not w.spec.adapter]
    if len(by_fleet) == 1:
        return by_fleet[0]
    raise NotFound(_not_found(name, [w.metadata.name for w in there], objects.namespace))


def get(api: Api, path: str, params: dict[str, str] | None = None) -> Json:
    """The object under a path from the root. Errors: as for `Api`."""

    async def once() -> Json:
        return api.call("GET", path, params)

    return _read(api, once)


def pods_of(api: Api, fleet: InferenceFleet) -> Sequence[Json]:
    """The worker pods of a fleet, by ordinal."""
    path = f"/api/v1/namespaces/{fleet.metadata.namespace}/pods"
    labels = f"{MANAGED},{LABEL_FLEET}={fleet.metadata.name}"
    found: list[Json] = get(api, path, {"labelSelector": labels})["items"]
    return sorted(found, key=lambda p: int(p["metadata"]["labels"].get(LABEL_ORDINAL, 0)))


def _read(objects: Place, call: Callable[[], Awaitable[T]]) -> T:
    """Read from the API server. Errors: Unavailable, after 10 seconds without an answer."""
    return run_blocking(patiently(objects, call, objects.monotonic() + _PATIENCE_SECONDS))


def _not_found(name: str | None, there: list[str], namespace: str) -> str:
    if not there:
        return (
            f"there is no WeightVersion in namespace {namespace!r}; name another namespace with -n, "
            "or look into all of them: rlfleet status -A"
        )
    if name is None:
        return f"there are {len(there)} WeightVersions in namespace {namespace!r}: name one of {', '.join(there)}"
    near = difflib.get_close_matches(name, there, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(there)}"
    return f"there is no WeightVersion and no fleet {name!r} in namespace {namespace!r}; {remedy}"
