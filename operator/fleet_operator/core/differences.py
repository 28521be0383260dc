"""Whether an object is as it should be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_WHOLE = frozenset({"selector"})
"""Maps that mean something else with one more key; the API calls them atomic."""


def holds(actual: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is there; what else is there does not matter.

    Maps are compared key by key, selectors as a whole; lists must have the same length and order.
    """
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            key in actual and (actual[key] == value if key in _WHOLE else holds(actual[key], value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(holds(a, w) for a, w in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)


def owns_more(found: Mapping[str, Any], wanted: Mapping[str, Any], *, manager: str) -> bool:
    """Whether a field manager has applied fields to an object that it does not want now. They stay
    until it applies the object again.

    `found`: the object, with its `managedFields`; without them nothing is known to be owned.
    Source: Kubernetes meta/v1 ManagedFieldsEntry and FieldsV1.
    """
    return any(
        not _names_only(entry.get("fieldsV1") or {}, wanted)
        for entry in found["metadata"].get("managedFields") or ()
        if entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and not entry.get("subresource")
    )


def _names_only(fields: Mapping[str, Any], wanted: Any) -> bool:
    """Whether each field of a set stands in a value."""
    for key, below in fields.items():
        if key == ".":
            continue  # the value itself
        kind, _, name = key.partition(":")
        there = _named(kind, name, wanted)
        if not there or not _names_only(below, there[0]):
            return False
    return True


def _named(kind: str, name: str, wanted: Any) -> list[Any]:
    """What a path element of a set of fields stands for in a value; empty if it is not there."""
    if kind == "f":
        return [wanted[name]] if isinstance(wanted, Mapping) and name in wanted else []
    if not isinstance(wanted, list):
        return []
    if kind == "k":
        # What a manifest leaves out has its default in the key, as the protocol of a port.
        keys, items = json.loads(name).items(), (w for w in wanted if isinstance(w, Mapping))
        return [w for w in items if all(w.get(k, value) == value for k, value in keys)]
    if kind == "v":
        return [w for w in wanted if w == json.loads(name)]
    return wanted[int(name) :][:1]
