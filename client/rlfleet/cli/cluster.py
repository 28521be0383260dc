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
from rlfleet.cli.pods import MANAGED, by_number
from rlfleet.errors import NotConfigured, NotFound
from rlfleet.follow import patiently
from rlfleet.kube import BlockingKube
from rlfleet.kubeconfig import load_access
from rlfleet.ports import Json, Kind, Place, run_blocking
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.rl_access import URL, RlAccess
from rlfleet.words import plural
from rlfleet_resources.names import LABEL_FLEET

FIELD_MANAGER = "rlfleet-cli"
PATIENCE_SECONDS = 10.0
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


def all_weights(objects: Place, within: float = PATIENCE_SECONDS) -> list[WeightVersion]:
    """Every WeightVersion of the namespace. `within`: seconds in which the API must answer."""
    found = _read(objects, lambda: objects.all(Kind.WEIGHTS), within)
    return [WeightVersion.model_validate(one) for one in found]


def all_fleets(objects: Place) -> list[InferenceFleet]:
    """Every fleet of the namespace."""
    found = _read(objects, lambda: objects.all(Kind.FLEETS))
    return [InferenceFleet.model_validate(one) for one in found]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The objects that a name means: a fleet, and the WeightVersion of its base weights or of the name.

    Fields:
        fleet: None if the WeightVersion names a fleet that does not exist.
        weights: None if the fleet has none, as where a trainer drives it.
    """

    fleet: InferenceFleet | None
    weights: WeightVersion | None

    @property
    def name(self) -> str:
        """Of the WeightVersion, or of the fleet without one."""
        if self.weights is not None:
            return self.weights.metadata.name
        return self.fleet.metadata.name if self.fleet else ""


def look(objects: Place, name: str | None) -> Target:
    """The objects that a name means; without a name, the only WeightVersion, or the only fleet.

    A fleet's name means the WeightVersion of its base weights, if the fleet has one.

    Errors: NotFound, with the names that exist.
    """
    weights, there = _search(objects, name)
    if weights is not None:
        return Target(_fleet(objects, weights.spec.fleet_ref.name), weights)
    fleets = all_fleets(objects)
    found = [one for one in fleets if name in {None, one.metadata.name}]
    if len(found) == 1:
        base = _base_of(there, found[0].metadata.name)
        if len(base) < 2:
            return Target(found[0], base[0] if base else None)
    raise NotFound(not_found(name, there, fleets, objects.namespace))


def find_fleet(objects: Place, name: str | None) -> tuple[InferenceFleet, WeightVersion | None]:
    """The fleet that a name means, and its WeightVersion if there is one. Errors: NotFound."""
    found = look(objects, name)
    if found.fleet is not None:
        return found.fleet, found.weights
    missing = found.weights.spec.fleet_ref.name if found.weights else name
    raise NotFound(
        f"WeightVersion {found.name!r} names the fleet {missing!r}, which does not exist; create it"
    )


def find(objects: Place, name: str | None, *, within: float = PATIENCE_SECONDS) -> WeightVersion:
    """The WeightVersion that a name means. `within`: seconds in which the API must answer, at most 10.

    Errors: NotFound, as for `look`, or for a fleet without one.
    """
    weights, _ = _search(objects, name, min(within, PATIENCE_SECONDS))
    if weights is not None:
        return weights
    found = look(objects, name)
    if found.weights is not None:
        return found.weights
    if found.fleet is not None and found.fleet.is_external:
        raise NotFound(
            f"a trainer drives fleet {found.name!r}, so it has no WeightVersion; "
            f"see what it serves: rlfleet workers {found.name} -n {objects.namespace}"
        )
    raise NotFound(
        f"fleet {found.name!r} has no WeightVersion; create one: "
        f"rlfleet publish VERSION --create-for {found.name} --path DIRECTORY -n {objects.namespace}"
    )


def get(api: Api, path: str, params: dict[str, str] | None = None) -> Json:
    """The object under a path from the root. Errors: as for `Api`."""

    async def once() -> Json:
        return api.call("GET", path, params)

    return _read(api, once)


def pods_of(api: Api, fleet: InferenceFleet) -> Sequence[Json]:
    """The worker pods of a fleet, by number."""
    path = f"/api/v1/namespaces/{fleet.metadata.namespace}/pods"
    labels = f"{MANAGED},{LABEL_FLEET}={fleet.metadata.name}"
    found: list[Json] = get(api, path, {"labelSelector": labels})["items"]
    return sorted(found, key=by_number)


def _read(objects: Place, call: Callable[[], Awaitable[T]], within: float = PATIENCE_SECONDS) -> T:
    """Read from the API server. Errors: Unavailable, after `within` seconds without an answer."""
    return run_blocking(patiently(objects, call, objects.monotonic() + within))


def _search(
    objects: Place, name: str | None, within: float = PATIENCE_SECONDS
) -> tuple[WeightVersion | None, list[WeightVersion]]:
    """The WeightVersion that a name means, if there is one; and those of the namespace, if read."""
    if name is not None:
        try:
            found = _read(objects, lambda: objects.get(Kind.WEIGHTS, name), within)
            return WeightVersion.model_validate(found), []
        except NotFound:
            pass
    there = all_weights(objects, within)
    meant = there if name is None else _base_of(there, name)
    return meant[0] if len(meant) == 1 else None, there


def _base_of(weights: list[WeightVersion], fleet: str) -> list[WeightVersion]:
    return [w for w in weights if w.spec.fleet_ref.name == fleet and not w.spec.adapter]


def _fleet(objects: Place, name: str) -> InferenceFleet | None:
    try:
        found = _read(objects, lambda: objects.get(Kind.FLEETS, name))
    except NotFound:
        return None
    return InferenceFleet.model_validate(found)


def not_found(
    name: str | None, weights: list[WeightVersion], fleets: list[InferenceFleet], namespace: str
) -> str:
    """The message for a name that means no object. `namespace`: that was searched; empty for all of them."""
    where = f" in namespace {namespace!r}" if namespace else ""
    names = [*(one.metadata.name for one in weights), *(one.metadata.name for one in fleets)]
    there = list(dict.fromkeys(names))
    if not there:
        elsewhere = "name another namespace with -n, or look into all of them: rlfleet status -A"
        remedy = elsewhere if namespace else "create one with kubectl apply"
        return f"there is no WeightVersion and no fleet{where}; {remedy}"
    if name is None:
        several = f"{plural(len(weights), 'WeightVersion')} and {plural(len(fleets), 'fleet')}"
        return f"there are {several}{where}: name one of {', '.join(there)}"
    near = difflib.get_close_matches(name, there, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(there)}"
    return f"there is no WeightVersion and no fleet {name!r}{where}; {remedy}"
