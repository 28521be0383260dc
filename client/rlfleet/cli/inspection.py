"""Reads of the cluster for checks, where an error is an answer too: of `doctor`, `explain`, `validate` and `version`."""

from __future__ import annotations

from collections.abc import Iterator

from rlfleet.cli import cluster, diagnosis, engine_flags, images, worker_events
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import Answer
from rlfleet.cli.pods import MANAGED, OPERATOR
from rlfleet.errors import Forbidden, RlfleetError
from rlfleet.ports import Json, Kind, run_blocking
from rlfleet_resources.names import LABEL_FLEET

_METADATA = "json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""An answer without the content of the object. Source: Kubernetes API concepts, "Metadata-only fetches"."""


def answer(api: Api, path: str, params: dict[str, str] | None = None) -> Answer:
    """The object under a path, or the error in its place."""
    try:
        return cluster.get(api, path, params)
    except RlfleetError as error:
        return error


def existence(api: Api, path: str) -> Answer:
    """The metadata of an object, such as a Secret whose content is not wanted."""
    try:
        return api.call("GET", path, media=_METADATA)
    except RlfleetError as error:
        return error


def operators(api: Api) -> Answer:
    """The Deployments of operators: of all namespaces, or of this one if it may see no others."""
    found = answer(api, "/apis/apps/v1/deployments", {"labelSelector": OPERATOR})
    if not isinstance(found, Forbidden):
        return found
    own = f"/apis/apps/v1/namespaces/{api.namespace}/deployments"
    nearby = answer(api, own, {"labelSelector": OPERATOR})
    return nearby if isinstance(nearby, dict) and nearby["items"] else found


def needs_of_fleets(api: Api, fleets: list[Json]) -> Iterator[Check]:
    """The objects that fleets name and the namespace must have, and the flags of their engines."""
    core = f"/api/v1/namespaces/{api.namespace}"
    named = sorted({claim for fleet in fleets for claim in diagnosis.claims_of(fleet)})
    claims = {name: answer(api, f"{core}/persistentvolumeclaims/{name}") for name in named}
    classes = answer(api, "/apis/storage.k8s.io/v1/storageclasses")
    yield from diagnosis.storage_checks(fleets, claims, classes)
    yield from _needs_of_pulls(api, fleets)
    yield from engine_flags.flag_checks(fleets)


def pods_of_fleets(api: Api, fleet: str | None = None) -> Iterator[Check]:
    """Why pods of workers cannot start. `fleet`: the one whose pods; None for all of the namespace."""
    core = f"/api/v1/namespaces/{api.namespace}"
    labels = MANAGED if fleet is None else f"{MANAGED},{LABEL_FLEET}={fleet}"
    pods = answer(api, f"{core}/pods", {"labelSelector": labels})
    there = [] if isinstance(pods, RlfleetError) else pods["items"]
    pulls, refusals = images.failed_pulls(there), engine_flags.refusals(there)
    yield from images.pull_checks(pulls, api.namespace)
    yield from engine_flags.refusal_checks(there)
    warnings = answer(api, f"{core}/events", {"fieldSelector": "type=Warning"})
    explained = {pull.pod for pull in pulls} | refusals.keys()
    yield from worker_events.event_checks(warnings, pods, api.namespace, explained)


def checks_of_fleet(api: Api, name: str) -> list[Check]:
    """The checks of `doctor` for one fleet; none where its spec cannot be read, as by the RL API."""
    try:
        fleet = run_blocking(api.get(Kind.FLEETS, name))
    except RlfleetError:
        return []
    if "weights" not in fleet.get("spec", {}):
        return []
    found = [*needs_of_fleets(api, [fleet]), *pods_of_fleets(api, name)]
    has_claims = bool(diagnosis.claims_of(fleet))
    return [one for one in found if has_claims or one.subject != "storage"]


def _needs_of_pulls(api: Api, fleets: list[Json]) -> Iterator[Check]:
    """The service accounts and the Secrets of fleets. Of Secrets, only that they exist is read."""
    core = f"/api/v1/namespaces/{api.namespace}"
    needs = [images.needs_of(fleet) for fleet in fleets]
    names = sorted({need.account for need in needs})
    accounts = {name: answer(api, f"{core}/serviceaccounts/{name}") for name in names}
    named = {s for account in accounts.values() for s in images.secrets_of(account)}
    named.update(*(need.secrets for need in needs))
    secrets = {name: existence(api, f"{core}/secrets/{name}") for name in sorted(named)}
    yield from images.needs_checks(needs, accounts, secrets)
