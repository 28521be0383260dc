"""Reads from a fleet whether another field manager has written what the operator remembers there.

Source: Kubernetes meta/v1 ManagedFieldsEntry and FieldsV1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlfleet_resources import names

_RECORD = frozenset({"f:applied", "f:pinned", "f:pinnedAdapters", "f:droppedPins"})
"""The fields of a fleet's status that an operator process takes over from another one."""


def is_edited(body: Mapping[str, Any]) -> bool:
    """Whether the applied weights or the pins in a fleet's status are those of another field manager, such
    as a backup tool, and not of an operator process.
    """
    return any(
        not _RECORD.isdisjoint(entry.get("fieldsV1", {}).get("f:status", {}))
        for entry in body["metadata"].get("managedFields") or ()
        if entry.get("manager") != names.FIELD_MANAGER
    )
