"""Keeps which objects of the followed kinds could not be read, by the fleet that they are labelled with.

Large parts of such an object are left out, or a defect of the operator kept it from being taken in. One without a fleet is only logged: it may be in any namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet_operator.errors import ObjectUnread
from fleet_operator.ports import Json
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_worker.logs import fields
from rlfleet_resources import names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unread:
    plural: str
    fleet: FleetKey
    part: str
    error: Exception


class UnreadObjects:
    """Objects that could not be read. `on_change`: called with the fleet of an object if that is new."""

    def __init__(self, on_change: Callable[[FleetKey], None]) -> None:
        self._on_change = on_change
        self._by_uid: dict[str, _Unread] = {}
        self._by_fleet: dict[FleetKey, dict[str, _Unread]] = {}

    def note(self, plural: str, body: Json, error: Exception | None) -> None:
        """Note whether an object could be read and taken in (None)."""
        metadata = body["metadata"]
        uid, namespace, name = metadata["uid"], metadata["namespace"], metadata["name"]
        if error is None:
            self.forget(uid)
            return
        fleet = (namespace, (metadata.get("labels") or {}).get(names.LABEL_FLEET, ""))
        known = self._by_uid.get(uid)
        if known is not None and (known.fleet, repr(known.error)) == (fleet, repr(error)):
            return
        self.forget(uid)
        found = _Unread(plural, fleet, f"{plural} {name}", error)
        self._by_uid[uid] = self._by_fleet.setdefault(fleet, {})[uid] = found
        logger.error(
            "%s %s/%s is left out: %s",
            *(plural, namespace, name, error),
            exc_info=None if isinstance(error, ObjectUnread) else error,
            extra=fields("object_unread", namespace=namespace),
        )
        if fleet[1]:
            self._on_change(fleet)

    def forget(self, uid: str) -> None:
        """Note that an object is gone, or is read now."""
        known = self._by_uid.pop(uid, None)
        if known is None:
            return
        of_fleet = self._by_fleet[known.fleet]
        del of_fleet[uid]
        if not of_fleet:
            del self._by_fleet[known.fleet]
        if known.fleet[1]:
            self._on_change(known.fleet)

    def uids_of(self, plural: str, namespace: str | None) -> set[str]:
        """Uids of the unread objects of one kind, in one namespace or in all (None)."""
        return {
            uid
            for uid, each in self._by_uid.items()
            if each.plural == plural and namespace in {None, each.fleet[0]}
        }

    def of(self, key: FleetKey) -> Mapping[str, Exception]:
        """The unread objects of a fleet, as kind and name, with what kept them from being read."""
        return {each.part: each.error for each in self._by_fleet.get(key, {}).values()}
