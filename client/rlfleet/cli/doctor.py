"""`rlfleet doctor`: what is wrong in the cluster, also before the first fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from rlfleet.cli import (
    candidates,
    checklist,
    cluster,
    diagnosis,
    first_fleet,
    images,
    inspection,
    rl_api,
)
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Check, Result
from rlfleet.cli.diagnosis import RIGHTS, Answer, Right
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.cli.pods import OPERATOR
from rlfleet.errors import NotConfigured, RlfleetError, Unauthorized, Unavailable
from rlfleet.ports import Json, Kind, run_blocking
from rlfleet_resources.names import API_VERSION


def doctor(
    name: Annotated[
        str | None, typer.Argument(help="Only this fleet.", autocompletion=candidates.names)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only what is not ok.")] = False,
    output: Format = Output.TABLE,
) -> None:
    """Check the cluster, the operator, this account, storage and workers."""
    if name is None and rl_api.named().url is None:
        found = list(_checks(cluster.connect(namespace, context, kubeconfig)))
    else:
        found = list(_of_fleet(cluster.connect_fleet(name, namespace, context, kubeconfig), name))
    checklist.report([one for one in found if not (quiet and one.result is Result.OK)], output)


def _of_fleet(api: Api, name: str | None) -> Iterator[Check]:
    """The checks of one fleet. The RL API shows its conditions only. Errors: what keeps it from being read."""
    fleet, _ = cluster.find_fleet(api, name)
    if not isinstance(api, rl_api.FleetOfRlApi):
        yield from inspection.checks_of_fleet(api, fleet.metadata.name)
    yield from diagnosis.fleet_checks([fleet.to_json()], api.namespace)


def _checks(api: Api) -> Iterator[Check]:
    """Every check, in the order in which their causes build on each other."""
    namespace = api.namespace
    yield diagnosis.cluster_check(_reached(api, "/version"))
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    group = API_VERSION.partition("/")[0]
    crds = {kind: inspection.answer(api, f"{definitions}/{kind}.{group}") for kind in Kind}
    yield from diagnosis.kinds_checks(inspection.answer(api, f"/apis/{API_VERSION}"), crds)

    everywhere = inspection.answer(api, f"/apis/{API_VERSION}/{Kind.FLEETS}")
    yield from diagnosis.crd_checks(everywhere, namespace)

    operators = inspection.operators(api)
    deployed = [] if isinstance(operators, RlfleetError) else operators["items"]
    leases = {}
    for one in deployed:
        where, name = one["metadata"]["namespace"], one["metadata"]["name"]
        lease = diagnosis.argument(one, "--lease-name") or name
        leases[where, name] = inspection.answer(
            api, f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases/{lease}"
        )
    yield from diagnosis.operator_checks(operators, leases, namespace, cluster.now())

    allowed = {right: _may(api, right) for right in RIGHTS}
    yield from diagnosis.rights_checks(allowed, namespace)
    nodes = inspection.answer(api, "/api/v1/nodes") if deployed else {"items": []}
    yield from images.default_checks(operators, nodes)
    yield from _operator_pulls(api, deployed)
    if (check := first_fleet.fleet_check(_tried(api), namespace)) is not None:
        yield check

    seen = _fleets(api)
    fleets = [] if isinstance(seen, RlfleetError) else seen
    yield from inspection.needs_of_fleets(api, fleets)
    yield from diagnosis.fleet_checks(seen, namespace)
    yield from inspection.pods_of_fleets(api)


def _reached(api: Api, path: str) -> Answer:
    """An answer. Errors: those without which nothing can be checked."""
    found = inspection.answer(api, path)
    if isinstance(found, (Unavailable, NotConfigured, Unauthorized)):
        raise found
    return found


def _operator_pulls(api: Api, deployed: list[Json]) -> Iterator[Check]:
    """Images that pods of operators cannot get. Pods of whole Deployments are not read."""
    broken = [one for one in deployed if diagnosis.lacks_pods(one)]
    for where in sorted({one["metadata"]["namespace"] for one in broken}):
        pods = inspection.answer(
            api, f"/api/v1/namespaces/{where}/pods", {"labelSelector": OPERATOR}
        )
        if isinstance(pods, RlfleetError):
            yield diagnosis.unread("image", pods)
        else:
            yield from images.pull_checks(images.failed_pulls(pods["items"]), where)


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
