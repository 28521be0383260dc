"""Where the RL API of a cluster is: as an option names it, or as the cluster says, or as the pages have it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlfleet.cli.api import Api
from rlfleet.cli.inspection import answer
from rlfleet.errors import RlfleetError
from rlfleet.ports import Json
from rlfleet_resources.names import FLEET_PLURAL, GROUP

_CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{FLEET_PLURAL}.{GROUP}"
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
    """The RL API of a cluster. It gets the fleet's token, so one in any other namespace than the release's does
    not count, whatever its labels are.

    Args:
        api: The cluster, or the error in its place.
        given: The one of the option; None for that of the release.
    """
    if isinstance(api, RlfleetError):
        return _unread(given, str(api), OF_THE_PAGES)
    where = given.namespace if given is not None else _of_release(api)
    read = answer(api, f"/apis/apps/v1/namespaces/{where}/deployments", _LABELS)
    likely = replace(OF_THE_PAGES, namespace=where)
    if isinstance(read, RlfleetError):
        return _unread(given, str(read), likely)
    there: dict[str, Json] = {one["metadata"]["name"]: one for one in read["items"]}
    name = given.name if given is not None else next(iter(there), "")
    if name not in there or (given is None and len(there) > 1):
        names = ", ".join(sorted(there)) or "none"
        return _unread(given, f"namespace {where} has {names}", likely)
    place = _read(api, ApiPlace(where, name), there[name])
    return Found(place, f"The RL API is {where}/{name}, as the cluster says.")


def _of_release(api: Api) -> str:
    """The namespace of the release that has installed the CRDs. Only the cluster's owner writes these.

    Source: Helm, "Charts", annotations of installed objects.
    """
    read = answer(api, _CRD)
    notes = {} if isinstance(read, RlfleetError) else read["metadata"].get("annotations", {})
    namespace: str = notes.get("meta.helm.sh/release-namespace", OF_THE_PAGES.namespace)
    return namespace


def _unread(given: ApiPlace | None, because: str, likely: ApiPlace) -> Found:
    if given is not None:
        name = f"{given.namespace}/{given.name}"
        return Found(given, f"The RL API is {name}, as --rl-api says, unchecked: {because}.")
    name = f"{likely.namespace}/{likely.name}"
    remedy = "Name another one with --rl-api NAMESPACE/NAME."
    return Found(likely, f"The RL API is assumed to be {name}: {because}. {remedy}")


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
