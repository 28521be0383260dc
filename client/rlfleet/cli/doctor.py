"""`rlfleet doctor`: what is wrong in the cluster, also before the first fleet."""

from __future__ import annotations

from collections.abc import Iterator

from rlfleet.cli import (
    checklist,
    cluster,
    diagnosis,
    engine_flags,
    first_fleet,
    images,
    worker_events,
)
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import RIGHTS, Answer, Right
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.cli.pods import MANAGED, OPERATOR
from rlfleet.errors import Forbidden, NotConfigured, RlfleetError, Unauthorized, Unavailable
from rlfleet.ports import Json, Kind, run_blocking
from rlfleet.resources import API_VERSION

_METADATA = "json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""An answer without the content of the object. Source: Kubernetes API concepts, "Metadata-only fetches"."""


def doctor(
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Check the cluster, the operator, this account, storage and workers."""
    checklist.report(list(_checks(cluster.connect(namespace, context, kubeconfig))), output)


def _checks(api: Api) -> Iterator[Check]:
    """Every check, in the order in which their causes build on each other."""
    namespace = api.namespace
    yield diagnosis.cluster_check(_reached(api, "/version"))
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    group = API_VERSION.partition("/")[0]
    crds = {kind: _answer(api, f"{definitions}/{kind}.{group}") for kind in Kind}
    yield from diagnosis.kinds_checks(_answer(api, f"/apis/{API_VERSION}"), crds)

    everywhere = _answer(api, f"/apis/{API_VERSION}/{Kind.FLEETS}")
    yield from diagnosis.crd_checks(everywhere, namespace)

    operators = _operators(api)
    deployed = [] if isinstance(operators, RlfleetError) else operators["items"]
    leases = {}
    for one in deployed:
        where, name = one["metadata"]["namespace"], one["metadata"]["name"]
        lease = diagnosis.argument(one, "--lease-name") or name
        leases[where, name] = _answer(
            api, f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases/{lease}"
        )
    yield from diagnosis.operator_checks(operators, leases, namespace, cluster.now())

    allowed = {right: _may(api, right) for right in RIGHTS}
    yield from diagnosis.rights_checks(allowed, namespace)
    nodes = _answer(api, "/api/v1/nodes") if deployed else {"items": []}
    yield from images.default_checks(operators, nodes)
    yield from _operator_pulls(api, deployed)
    if (check := first_fleet.fleet_check(_tried(api), namespace)) is not None:
        yield check

    seen = _fleets(api)
    fleets = [] if isinstance(seen, RlfleetError) else seen
    core = f"/api/v1/namespaces/{namespace}"
    named = sorted({claim for fleet in fleets for claim in diagnosis.claims_of(fleet)})
    claims = {name: _answer(api, f"{core}/persistentvolumeclaims/{name}") for name in named}
    classes = _answer(api, "/apis/storage.k8s.io/v1/storageclasses")
    yield from diagnosis.storage_checks(fleets, claims, classes)
    yield from _needs_of_pulls(api, fleets)
    yield from engine_flags.flag_checks(fleets)
    yield from diagnosis.fleet_checks(seen, namespace)
    pods = _answer(api, f"{core}/pods", {"labelSelector": MANAGED})
    there = [] if isinstance(pods, RlfleetError) else pods["items"]
    pulls, refusals = images.failed_pulls(there), engine_flags.refusals(there)
    yield from images.pull_checks(pulls, namespace)
    yield from engine_flags.refusal_checks(there)
    warnings = _answer(api, f"{core}/events", {"fieldSelector": "type=Warning"})
    explained = {pull.pod for pull in pulls} | refusals.keys()
    yield from worker_events.event_checks(warnings, pods, namespace, explained)


def _reached(api: Api, path: str) -> Answer:
    """An answer. Errors: those without which nothing can be checked."""
    found = _answer(api, path)
    if isinstance(found, (Unavailable, NotConfigured, Unauthorized)):
        raise found
    return found


def _answer(api: Api, path: str, params: dict[str, str] | None = None) -> Answer:
    try:
        return cluster.get(api, path, params)
    except RlfleetError as error:
        return error


def _operators(api: Api) -> Answer:
    """The Deployments of operators: of all namespaces, or of this one if it may see no others."""
    found = _answer(api, "/apis/apps/v1/deployments", {"labelSelector": OPERATOR})
    if not isinstance(found, Forbidden):
        return found
    own = f"/apis/apps/v1/namespaces/{api.namespace}/deployments"
    nearby = _answer(api, own, {"labelSelector": OPERATOR})
    return nearby if isinstance(nearby, dict) and nearby["items"] else found


def _operator_pulls(api: Api, deployed: list[Json]) -> Iterator[Check]:
    """Images that pods of operators cannot get. Pods of whole Deployments are not read."""
    broken = [one for one in deployed if diagnosis.lacks_pods(one)]
    for where in sorted({one["metadata"]["namespace"] for one in broken}):
        pods = _answer(api, f"/api/v1/namespaces/{where}/pods", {"labelSelector": OPERATOR})
        if isinstance(pods, RlfleetError):
            yield diagnosis.unread("image", pods)
        else:
            yield from images.pull_checks(images.failed_pulls(pods["items"]), where)


def _needs_of_pulls(api: Api, fleets: list[Json]) -> Iterator[Check]:
    """The service accounts and the Secrets of fleets. Of Secrets, only that they exist is read."""
    core = f"/api/v1/namespaces/{api.namespace}"
    needs = [images.needs_of(fleet) for fleet in fleets]
    names = sorted({need.account for need in needs})
    accounts = {name: _answer(api, f"{core}/serviceaccounts/{name}") for name in names}
    named = {s for account in accounts.values() for s in images.secrets_of(account)}
    named.update(*(need.secrets for need in needs))
    secrets = {name: _exists(api, f"{core}/secrets/{name}") for name in sorted(named)}
    yield from images.needs_checks(needs, accounts, secrets)


def _exists(api: Api, path: str) -> Answer:
    try:
        return api.call("GET", path, media=_METADATA)
    except RlfleetError as error:
        return error


def _may(api: Api, right: Right) -> bool | RlfleetError:
    attributes = right.attributes | {"namespace": api.namespace}
    body: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    try:
        return bool(api.call("POST", path, None, body)["status"]["allowed"])
    except RlfleetError as error:
        return error


def _tried(api: Api) -> Answer:
    """The answer to a fleet that the API server checks and does not store."""
    path = f"/apis/{API_VERSION}/namespaces/{api.namespace}/{Kind.FLEETS}"
    try:
        return api.call("POST", path, {"dryRun": "All"}, first_fleet.MINIMAL)
    except RlfleetError as error:
        return error


def _fleets(api: Api) -> list[Json] | RlfleetError:
    """The fleets, or why they cannot be read."""
    try:
        return [*run_blocking(_all_fleets(api))]
    except RlfleetError as error:
        return error


async def _all_fleets(api: Api) -> list[Json]:
    return [*await api.all(Kind.FLEETS)]
