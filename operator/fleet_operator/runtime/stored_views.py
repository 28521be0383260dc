"""Reads one stored custom resource, also if its spec cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.runtime.spec_budget import SpecTooLarge
from rlfleet_resources import names
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import WeightsStatus

RawObject = Mapping[str, Any]
S = TypeVar("S", FleetStatus, WeightsStatus)
_MAX_NAMED_FIELDS = 3
UNREADABLE = (ValidationError, KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""The errors of reading an object of an unknown shape."""


def weights_view(body: RawObject) -> WeightsView:
    """Errors: any of `UNREADABLE` if the spec cannot be read."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations", {})
    traceparent = annotations.get(names.ANNOTATION_TRACEPARENT, "")
    view = WeightsView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        spec=WeightsSpec.model_validate(body["spec"]),
        retry=names.retry_mark(annotations.get(names.ANNOTATION_RETRY, "")),
        requested_by=names.writer_of_version(metadata.get("managedFields") or ()),
        traceparent=traceparent[: names.MAX_TRACEPARENT_CHARACTERS],
        status=status_in(body, WeightsStatus),
    )
    view.spec.source.resolve(view.spec.version)  # checks the length with the version filled in
    return view


def unread_view(
    body: RawObject,
    known: WeightsView | UnreadWeights | None,
    why: str,
    reason: ConditionReason,
) -> WeightsView | UnreadWeights:
    """The view of an unreadable WeightVersion, with its last readable spec if there is one."""
    metadata = body["metadata"]
    if isinstance(known, WeightsView) and known.uid == metadata["uid"]:
        status = status_in(body, WeightsStatus)
        reread = replace(known, generation=metadata["generation"], status=status)
        return replace(reread, unreadable=why, unreadable_reason=reason)
    spec = body.get("spec")
    fields = spec if isinstance(spec, Mapping) else {}
    reference = fields.get("fleetRef")
    fleet = reference.get("name") if isinstance(reference, Mapping) else None
    adapter = fields.get("adapter", "")
    return UnreadWeights(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        fleet=fleet if isinstance(fleet, str) else "",
        adapter=adapter if isinstance(adapter, str) else None,
        unreadable=why,
        unreadable_reason=reason,
        status=status_in(body, WeightsStatus),
    )


def why_unreadable(error: Exception) -> str:
    """The invalid fields and their errors, without the values, which may be secret."""
    if isinstance(error, SpecTooLarge):
        return str(error)
    if not isinstance(error, ValidationError):
        return f"its structure is invalid ({type(error).__name__})"
    found = [
        f"{'.'.join(('spec', *map(str, each['loc'])))}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    ]
    more = len(found) - _MAX_NAMED_FIELDS
    return "; ".join(found[:_MAX_NAMED_FIELDS]) + (f"; and {more} more" if more > 0 else "")


def reason_of(error: Exception) -> ConditionReason:
    """Returns the reason of the condition for an error of reading a spec."""
    too_large = isinstance(error, SpecTooLarge)
    return ConditionReason.SPEC_TOO_LARGE if too_large else ConditionReason.INVALID_SPEC


def status_in(body: RawObject, model: type[S]) -> S:
    """Returns the stored status. Another release may have written parts of it that this one cannot read."""
    return model.read(body.get("status") or {})
