"""Pins that another release has written in a form which this one cannot read.

Such a pin still keeps its label: the version is refused, no worker loads it or is admitted with it, and no new
pin takes its place. Workers that serve it go on. Of most of these pins the name can be read. Of one whose name
cannot, any version without a pin may be the version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet_worker import protocol
from rlfleet_resources.fleet_status import FleetStatus

_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class UnreadPins:
    """The pins of the base weights or of one adapter that cannot be read.

    Fields:
        keys: versions and runs.
        nameless: there are others whose names cannot be read either.
    """

    keys: frozenset[_Key] = frozenset()
    nameless: bool = False

    def may_name(self, weights: protocol.Named) -> bool:
        """Whether one of them may be the pin of a version that has no other pin."""
        return self.nameless or (weights.version, weights.run_id) in self.keys


NO_UNREAD_PINS = UnreadPins()


def unread_pins_of(status: FleetStatus, adapter: str = "") -> UnreadPins:
    """Returns the pins of a status that cannot be read. `adapter`: empty for the base weights."""
    unread = status.unread
    if not (unread.entries or unread.values):
        return NO_UNREAD_PINS
    name = "pinnedAdapters" if adapter else "pinned"
    raws = [entry.raw for entry in unread.entries if entry.within == name]
    keys = [_key_of(raw) for raw in raws if _may_be_of(raw, adapter)]
    return UnreadPins(
        keys=frozenset(key for key in keys if key is not None),
        nameless=None in keys or not unread.values.keys().isdisjoint({name, "droppedPins"}),
    )


def _may_be_of(raw: Any, adapter: str) -> bool:
    named = raw.get("adapter") if adapter and isinstance(raw, dict) else None
    return not isinstance(named, str) or named == adapter


def _key_of(raw: Any) -> _Key | None:
    """Version and run of a stored pin; None if they cannot be read."""
    if not isinstance(raw, dict):
        return None
    version, run_id = raw.get("version"), raw.get("runID")
    if not isinstance(version, str) or not (run_id is None or isinstance(run_id, str)):
        return None
    return version, run_id
