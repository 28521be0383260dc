"""Asks the API server for its opinion of manifests, by dry runs, which store nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlfleet.cli import cluster
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Result
from rlfleet.cli.spec_rules import overlay_of
from rlfleet.cli.validation import FLEET, WEIGHTS, Finding, Manifest, failed, finding
from rlfleet.errors import Forbidden, NotFound, Refused, RlfleetError, Unavailable
from rlfleet.ports import ExistsError, Json, Kind
from rlfleet_resources.names import API_VERSION

KINDS = {FLEET: Kind.FLEETS, WEIGHTS: Kind.WEIGHTS}
_FIELD = re.compile(r"\bspec(?:\.\w+|\[\d+\])+")
_FREE_KEYS = re.compile(r"\.(limits|requests|nodeSelector|labels|annotations|matchLabels)\..*")
_UNQUOTED = re.compile(r'must be of type string: "(integer|number|boolean)"')
_NOISE = re.compile(r", <nil>: Invalid value: null: some validation rules were not checked[^\]]*")
_DRY_RUN = {
    "dryRun": "All",
    "fieldManager": cluster.FIELD_MANAGER,
    "fieldValidation": "Strict",
}
_APPLY = _DRY_RUN | {"force": "true"}
"""Fields of other managers are taken only for the duration of the check."""
_UNKNOWN = "strict decoding error: "


def refusals(api: Api, manifests: list[Manifest]) -> Iterator[Finding]:
    """The refusals of our objects by the API server."""
    for one in manifests:
        namespace, name = one.key
        if one.body.get("apiVersion") != API_VERSION:
            message = f"the cluster serves no {one.body.get('apiVersion')}"
            yield failed(one, "NotFound", message, f"set apiVersion: {API_VERSION}")
            continue
        plural = KINDS.get(one.kind)
        if plural is None or not name:
            message = "the kind is unknown" if plural is None else "metadata.name is missing"
            yield failed(one, "Invalid", message, "correct the file")
            continue
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}"
        body = one.body | {"metadata": one.body["metadata"] | {"namespace": namespace}}
        try:
            api.call("PATCH", f"{path}/{name}", _APPLY, body, media="apply-patch+yaml")
        except Unavailable as error:
            # The API server answers an unknown field or a wrong type with 500 for an apply.
            if "typed patch object" not in str(error):
                raise
            yield _refused(one, "BadRequest", _by_creation(api, path, body) or _of_apply(error))
        except Forbidden as error:
            message, _, remedy = str(error).partition("; ")
            note = f"the API server has not checked it: {message}"
            yield finding(Result.WARN, one, note, rule="Forbidden", remedy=remedy)
        except NotFound as error:
            remedy = f"create namespace {namespace!r}, or see rlfleet doctor"
            yield failed(one, "NotFound", str(error).partition("; ")[0], remedy)
        except Refused as error:
            yield _refused(one, error.reason, error.message)
        except RlfleetError as error:
            yield _refused(one, "BadRequest", str(error))


def overlay_refusals(api: Api, manifests: list[Manifest]) -> Iterator[Finding]:
    """Fields of overlays that no pod has. The API server drops such a field when the operator creates a pod.

    An overlay is a fragment, so only what the API server cannot decode counts.
    """
    for one in manifests:
        pod = overlay_of(one.body) if one.kind == FLEET else None
        if pod is None:
            continue
        try:
            api.call("POST", f"/api/v1/namespaces/{one.namespace}/pods", _DRY_RUN, pod)
        except Forbidden as error:
            message, _, remedy = str(error).partition("; ")
            note = f"fields of spec.podOverlay are not checked: {message}"
            yield finding(Result.WARN, one, note, rule="Forbidden", remedy=remedy)
        except (Refused, RlfleetError, ExistsError) as error:
            _, is_unknown, fields = str(error).partition(_UNKNOWN)
            if is_unknown:
                named = fields.partition(";")[0].replace('field "', 'field "spec.podOverlay.')
                remedy = "correct the name; kubectl explain pod has the fields"
                yield failed(one, "UnknownField", named, remedy)


def _refused(one: Manifest, reason: str, message: str) -> Finding:
    """A refusal with the field to correct: of an unknown one it is the field around it, which may have to be
    a list or a text.
    """
    _, is_named, named = message.partition(" is invalid: ")
    field = _FIELD.search(named if is_named else message)
    if field is None:
        return failed(one, reason, message, "correct the field that the message names")
    path = _FREE_KEYS.sub(r".\1", re.sub(r"\[\d+\]", "", field[0]))
    if _UNKNOWN in message:
        path = path.rpartition(".")[0]
    remedy = f"kubectl explain {KINDS[one.kind].value}.{path} has what belongs there"
    if _UNQUOTED.search(message):
        remedy = f"write the value in quotes; {remedy}"
    return failed(one, reason, _NOISE.sub("", message), remedy)


def _by_creation(api: Api, path: str, body: Json) -> str:
    """The refusal to create the object, in the words that kubectl shows; empty if the API server takes it."""
    try:
        api.call("POST", path, _DRY_RUN, body)
    except Refused as error:
        return error.message
    except (RlfleetError, ExistsError):
        return ""
    return ""


def _of_apply(error: Unavailable) -> str:
    return str(error).rpartition("): ")[2].removesuffix("; try again")
