"""The two custom resources as last seen, parsed once.

Filled by a list at start, so that nothing is decided on half of the objects, and by kopf's watch
from then on. kopf handles each uid by itself: what it says of a deleted object may come after its
successor of the same name, and must not hide that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from fleet_operator.api import names
from fleet_operator.api.fleet import FleetSpec, FleetStatus
from fleet_operator.api.weights import WeightsSpec, WeightsStatus
from fleet_operator.core.observed import WeightsView
from fleet_operator.runtime.informer import FleetKey

logger = logging.getLogger(__name__)

RawObject = Mapping[str, Any]
S = TypeVar("S", FleetStatus, WeightsStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """One InferenceFleet as stored."""

    uid: str
    generation: int
    deleting: bool
    spec: FleetSpec
    status: FleetStatus


class Store:
    """Fleets and the WeightVersions that refer to them."""

    def __init__(self, on_change: Callable[[FleetKey], None]) -> None:
        self._on_change = on_change
        self._fleets: dict[FleetKey, FleetRecord] = {}
        self._weights: dict[FleetKey, WeightsView] = {}

    def fleet(self, key: FleetKey) -> FleetRecord | None:
        """The fleet, unless it is gone or going."""
        found = self._fleets.get(key)
        return None if found is None or found.deleting else found

    def fleet_keys(self) -> list[FleetKey]:
        """All fleets."""
        return list(self._fleets)

    def weights_of(self, key: FleetKey) -> tuple[WeightsView, ...]:
        """The WeightVersions that name this fleet, oldest first."""
        namespace, name = key
        found = (
            w
            for w in self._weights.values()
            if w.namespace == namespace and w.spec.fleet_ref.name == name
        )
        return tuple(sorted(found, key=lambda w: (w.created_at, w.name)))

    def put_fleet(self, body: RawObject) -> None:
        """Take in a fleet that was added or modified."""
        key = _key(body)
        if _is_going(body) and _is_of_another(body, self._fleets.get(key)):
            return
        try:
            self._fleets[key] = FleetRecord(
                uid=body["metadata"]["uid"],
                generation=body["metadata"]["generation"],
                deleting=_is_going(body),
                spec=FleetSpec.model_validate(body["spec"]),
                status=_status_in(body, FleetStatus),
            )
        except ValidationError as error:
            # The API server holds the same schema, so this is an object of another release.
            logger.error("InferenceFleet %s/%s cannot be read: %s", *key, error)
            return
        self._on_change(key)

    def put_weights(self, body: RawObject) -> None:
        """Take in a WeightVersion that was added or modified."""
        key = _key(body)
        if _is_going(body):
            self.remove_weights(body)
            return
        metadata = body["metadata"]
        try:
            view = WeightsView(
                name=metadata["name"],
                namespace=metadata["namespace"],
                uid=metadata["uid"],
                generation=metadata["generation"],
                created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
                spec=WeightsSpec.model_validate(body["spec"]),
                retry=metadata.get("annotations", {}).get(names.ANNOTATION_RETRY, ""),
                status=_status_in(body, WeightsStatus),
            )
            # What no schema can bound: the source's length once the version is filled in.
            view.spec.source.resolve(view.spec.version)
        except ValidationError as error:
            logger.error("WeightVersion %s/%s cannot be read: %s", *key, error)
            return
        steered = {w.spec.fleet_ref.name for w in (self._weights.get(key), view) if w}
        self._weights[key] = view
        for fleet in steered:
            self._on_change((view.namespace, fleet))

    def remove_fleet(self, body: RawObject) -> None:
        """Forget a fleet."""
        key = _key(body)
        if _is_of_another(body, self._fleets.get(key)):
            return
        self._fleets.pop(key, None)
        self._on_change(key)

    def remove_weights(self, body: RawObject) -> None:
        """Forget a WeightVersion."""
        known = self._weights.get(_key(body))
        if known is not None and not _is_of_another(body, known):
            del self._weights[_key(body)]
            self._on_change((known.namespace, known.spec.fleet_ref.name))


def _status_in(body: RawObject, model: type[S]) -> S:
    """The stored status, as far as it can be read: another release, say the one before a rollback
    of the operator, may have written words into it that this one does not know.
    """
    status = dict(body.get("status") or {})
    try:
        return model.model_validate(status)
    except ValidationError as error:
        unknown = {str(each["loc"][0]) for each in error.errors()}
    logger.warning("status of %s/%s: %s cannot be read", *_key(body), ", ".join(sorted(unknown)))
    return model.model_validate({k: v for k, v in status.items() if k not in unknown})


def _is_going(body: RawObject) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _is_of_another(body: RawObject, known: FleetRecord | WeightsView | None) -> bool:
    """Whether an object of this name is known that is not this one."""
    return known is not None and known.uid != body["metadata"]["uid"]


def _key(body: RawObject) -> FleetKey:
    return body["metadata"]["namespace"], body["metadata"]["name"]
