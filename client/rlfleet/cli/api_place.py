"""Where the RL API of a cluster is: as an option names it, or as the cluster says, or as the pages have it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlfleet.cli.api import Api
from rlfleet.cli.inspection import answer
from rlfleet.errors import RlfleetError
from rlfleet.ports import Json

_LABELS = {"labelSelector": "app.kubernetes.io/name=rlfleet-api"}


@dataclass(frozen=True, slots=True)
class ApiPlace:
    """The RL API of one release.

    Fields:
        name: of its Deployment and of its Service.
        account: the service account that calls workers.
    """

    namespace: str = "rlfleet-system"
    name: str = "rlfleet-api"
    account: str = "rlfleet-api"
    scheme: str = "http"
    port: int = 8090

    @property
    def url(self) -> str:
        """Its address in the cluster."""
        return f"{self.scheme}://{self.name}.{self.namespace}.svc:{self.port}"


OF_THE_PAGES = ApiPlace()


@dataclass(frozen=True, slots=True)
class Found:
    """`text`: a sentence with the place and its source."""

    place: ApiPlace
    text: str = ""


def named(option: str) -> ApiPlace:
    """The place of `NAMESPACE/NAME`, with the chart's name of the account."""
    namespace, _, name = option.partition("/")
    return ApiPlace(namespace, name, account=name)


def find(api: Api | RlfleetError, given: ApiPlace | None) -> Found:
    """The RL API of a cluster, or the error that keeps from it in the place of the cluster.

    `given`: the one that an option names; None for the only one that there is.
    """
    if isinstance(api, RlfleetError):
        return _unread(given, str(api))
    read = answer(api, "/apis/apps/v1/deployments", _LABELS)
    if isinstance(read, RlfleetError):
        return _unread(given, str(read))
    there = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in read["items"]}
    place = given or OF_THE_PAGES
    if given is None and len(there) == 1:
        (at,) = there
        place = ApiPlace(*at)
    found = there.get((place.namespace, place.name))
    if found is None:
        others = ", ".join(sorted(map("/".join, there))) or "none"
        return _unread(given, f"the cluster has {others}")
    text = f"The RL API is {place.namespace}/{place.name}, as the cluster says."
    return Found(_read(api, place, found), text)


def _unread(given: ApiPlace | None, because: str) -> Found:
    if given is not None:
        name = f"{given.namespace}/{given.name}"
        return Found(given, f"The RL API is {name}, as --rl-api says, unchecked: {because}.")
    name = f"{OF_THE_PAGES.namespace}/{OF_THE_PAGES.name}"
    remedy = "Name another one with --rl-api NAMESPACE/NAME."
    return Found(OF_THE_PAGES, f"The RL API is assumed to be {name}: {because}. {remedy}")


def _read(api: Api, place: ApiPlace, deployment: Json) -> ApiPlace:
    pod = deployment["spec"]["template"]["spec"]
    arguments = [word for each in pod["containers"] for word in each.get("args", ())]
    scheme = "https" if any(word.startswith("--tls-cert") for word in arguments) else "http"
    place = replace(place, account=pod.get("serviceAccountName", "default"), scheme=scheme)
    service = answer(api, f"/api/v1/namespaces/{place.namespace}/services/{place.name}")
    if isinstance(service, RlfleetError):
        return place
    ports = [p["port"] for p in service["spec"]["ports"] if p.get("name") == "http"]
    return replace(place, port=ports[0]) if ports else place
