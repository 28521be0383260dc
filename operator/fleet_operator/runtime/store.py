"""Holds the two custom resources as last read, parsed once.

A list fills it at start, so that no decision uses an incomplete set of objects. kopf's watch updates it
from then on. kopf handles each uid separately: an event of a deleted object may come after a new object
of the same name, and must not replace it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fleet_operator.api.fleet import FleetSpec, Staleness
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.runtime.fleet_weights import FleetWeights
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.managed_fields import is_edited
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.spec_budget import SpecBudget
from fleet_operator.runtime.stored_views import (
    UNREADABLE,
    RawObject,
    reason_of,
    status_in,
    unread_view,
    weights_view,
    why_unreadable,
)
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """One InferenceFleet as stored.

    Fields:
        version: its resourceVersion.
        unreadable: why this generation's spec is not readable; empty if it is. `unreadable_reason`: for the
            condition.
        spec: the last readable spec; None without one.
        edited: see `is_edited`.
    """

    uid: str
    version: str
    generation: int
    deleting: bool
    spec: FleetSpec | None
    status: FleetStatus
    unreadable: str = ""
    unreadable_reason: ConditionReason = ConditionReason.INVALID_SPEC
    edited: bool = False

    @property
    def staleness(self) -> Staleness | None:
        """`spec.staleness`, as far as it can be read."""
        return self.spec.staleness if self.spec is not None else None


class Store:
    """Fleets and the WeightVersions that refer to them.

    Of an unreadable object, the store keeps the uid, the generation, the cause and the last readable
    spec.
    """

    def __init__(self, on_change: Callable[[FleetKey], None]) -> None:
        self._on_change = on_change
        self._fleets: dict[FleetKey, FleetRecord] = {}
        self._weights: dict[FleetKey, WeightsView | UnreadWeights] = {}
        self._weights_versions: dict[FleetKey, str] = {}
        self._by_fleet: dict[FleetKey, FleetWeights] = {}
        self.budget = SpecBudget()

    def fleet(self, key: FleetKey) -> FleetRecord | None:
        """The fleet; None if it is gone or being deleted."""
        found = self._fleets.get(key)
        return None if found is None or found.deleting else found

    def replicas_of(self, key: FleetKey) -> int | None:
        """`spec.replicas` of this fleet; None if it is not known or was never readable."""
        record = self._fleets.get(key)
        return record.spec.replicas if record is not None and record.spec is not None else None

    def fleet_keys(self) -> list[FleetKey]:
        """All fleets."""
        return list(self._fleets)

    def named(self, key: FleetKey) -> FleetWeights:
        """All WeightVersions that name this fleet. Read only."""
        return self._by_fleet.get(key) or FleetWeights()

    def weights_of(self, key: FleetKey) -> tuple[WeightsView, ...]:
        """The WeightVersions that this fleet looks at, oldest first."""
        return tuple(w for w in self.named(key).looked_at if isinstance(w, WeightsView))

    def unread_of(self, key: FleetKey) -> tuple[UnreadWeights, ...]:
        """Those that this fleet would look at if they could be read, oldest first."""
        return tuple(w for w in self.named(key).looked_at if isinstance(w, UnreadWeights))

    def unowned(self) -> Iterator[tuple[FleetKey, WeightsView | UnreadWeights]]:
        """The WeightVersions that name fleets that do not exist, with the names of these fleets."""
        for key, named in self._by_fleet.items():
            if self.fleet(key) is None:
                yield from ((key, each) for each in named.looked_at)

    def version_of(self, weights: WeightsView | UnreadWeights) -> str:
        """The resourceVersion of a WeightVersion; empty if it is gone."""
        return self._weights_versions.get((weights.namespace, weights.name), "")

    def put_fleet(self, body: RawObject) -> None:
        """Take in a fleet that was added or modified."""
        key, metadata = _key(body), body["metadata"]
        known = self._fleets.get(key)
        if known is not None and _is_of_an_older(body, known.uid, known.version):
            return
        spec = known.spec if known is not None and known.uid == metadata["uid"] else None
        unreadable, reason = "", ConditionReason.INVALID_SPEC
        try:
            self.budget.admit(body)
            spec = FleetSpec.model_validate(body["spec"])
        except UNREADABLE as error:
            unreadable, reason = why_unreadable(error), reason_of(error)
            if known is None or known.unreadable != unreadable:
                fleet = fleet_fields("unreadable", key)
                logger.error(
                    "InferenceFleet %s/%s cannot be read: %s", *key, unreadable, extra=fleet
                )
        self._fleets[key] = FleetRecord(
            uid=metadata["uid"],
            version=_version(body),
            generation=metadata["generation"],
            deleting=_is_going(body),
            spec=spec,
            status=status_in(body, FleetStatus),
            unreadable=unreadable,
            unreadable_reason=reason,
            edited=is_edited(body),
        )
        self._on_change(key)

    def put_weights(self, body: RawObject) -> None:
        """Take in a WeightVersion that was added or modified."""
        key = _key(body)
        known = self._weights.get(key)
        if known is not None and _is_of_an_older(body, known.uid, self._weights_versions[key]):
            return
        if _is_going(body):
            self.remove_weights(body)
            return
        read: WeightsView | UnreadWeights
        try:
            self.budget.admit(body)
            read = weights_view(body)
        except UNREADABLE as error:
            read = unread_view(body, known, why_unreadable(error), reason_of(error))
            if known is None or known.unreadable != read.unreadable:
                logger.error(
                    "WeightVersion %s/%s cannot be read: %s",
                    *key,
                    read.unreadable,
                    extra=fleet_fields("unreadable", (key[0], read.fleet), weightversion=key[1]),
                )
        if known is not None and known.fleet != read.fleet:
            self._forget_weights(key)
        self._weights[key], self._weights_versions[key] = read, _version(body)
        fleet = (read.namespace, read.fleet)
        if self._by_fleet.setdefault(fleet, FleetWeights()).put(read):
            self._on_change(fleet)

    def remove_fleet(self, body: RawObject) -> None:
        """Forget a fleet."""
        key = _key(body)
        known = self._fleets.get(key)
        if known is not None and known.uid != body["metadata"]["uid"]:
            return
        self._fleets.pop(key, None)
        self.budget.release(key[0], body["metadata"]["uid"])
        self._on_change(key)

    def uids(self, namespace: str | None) -> set[str]:
        """Uids of all objects of one namespace, or of all (None)."""
        return {
            each.uid
            for known in (self._fleets, self._weights)
            for key, each in known.items()
            if namespace in {None, key[0]}
        }

    def forget_all_but(self, uids: set[str], namespace: str | None) -> None:
        """Forget every object that is missing in a complete list of one namespace, or of all (None)."""
        gone_uids = self.uids(namespace) - uids
        for fleet in [k for k, f in self._fleets.items() if f.uid in gone_uids]:
            self.budget.release(fleet[0], self._fleets.pop(fleet).uid)
            self._on_change(fleet)
        for key in [k for k, w in self._weights.items() if w.uid in gone_uids]:
            self._forget_weights(key)

    def remove_weights(self, body: RawObject) -> None:
        """Forget a WeightVersion."""
        key = _key(body)
        known = self._weights.get(key)
        if known is not None and known.uid == body["metadata"]["uid"]:
            self._forget_weights(key)

    def _forget_weights(self, key: FleetKey) -> None:
        gone = self._weights.pop(key)
        del self._weights_versions[key]
        self.budget.release(key[0], gone.uid)
        fleet = (gone.namespace, gone.fleet)
        self._by_fleet[fleet].remove(gone.name)
        if not len(self._by_fleet[fleet]):
            del self._by_fleet[fleet]
        self._on_change(fleet)


def _is_going(body: RawObject) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _is_of_an_older(body: RawObject, uid: str, version: str) -> bool:
    """Whether a newer object has the same name: the known object has another uid and a later
    resourceVersion (the API server's are comparable numbers), or this one is being deleted.
    """
    if body["metadata"]["uid"] == uid:
        return False
    found = _version(body)
    if found.isdecimal() and version.isdecimal():
        return int(found) < int(version)
    return _is_going(body)


def _version(body: RawObject) -> str:
    return str(body["metadata"].get("resourceVersion", ""))


def _key(body: RawObject) -> FleetKey:
    return body["metadata"]["namespace"], body["metadata"]["name"]
