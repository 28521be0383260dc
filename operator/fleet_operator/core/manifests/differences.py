"""Compares objects of the API server with their manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlfleet_resources.quantities import comparable

_WHOLE = frozenset({"selector"})
"""Atomic maps of the API: one more key changes their meaning."""
_AMOUNTS = frozenset({"limits", "requests"})
"""Maps of quantities. The API server stores no empty one, and each amount in one notation."""


def contains(actual: Any, wanted: Any) -> bool:
    """Whether the object has every field of the manifest. Further fields do not matter.

    Maps are compared key by key, selectors as a whole, and resources by their amounts. Lists must have the same
    length and order.
    """
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            _has(actual, key, value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(contains(a, w) for a, w in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)


def _has(actual: dict[str, Any], key: str, wanted: Any) -> bool:
    if key in _AMOUNTS and isinstance(wanted, dict):
        stored = actual.get(key, {})
        return isinstance(stored, dict) and all(
            name in stored and comparable(stored[name]) == comparable(amount)
            for name, amount in wanted.items()
        )
    if key not in actual:
        return False
    return bool(actual[key] == wanted) if key in _WHOLE else contains(actual[key], wanted)


def owns_more(found: Mapping[str, Any], wanted: Mapping[str, Any], *, manager: str) -> bool:
    """Whether a field manager owns fields of an object that its manifest no longer has. They stay until
    the manager applies the manifest again.

    `found`: the object with its `managedFields`; without them the manager owns nothing.
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
    """Whether a value has each field of a set."""
    for key, below in fields.items():
        if key == ".":
            continue  # the value itself
        kind, _, name = key.partition(":")
        there = _named(kind, name, wanted)
        if not there or not _names_only(below, there[0]):
            return False
    return True


def _named(kind: str, name: str, wanted: Any) -> list[Any]:
    """Returns the part of a value that a path element names; empty if the value has no such part."""
    if kind == "f":
        return [wanted[name]] if isinstance(wanted, Mapping) and name in wanted else []
    if not isinstance(wanted, list):
        return []
    if kind == "k":
        # A field that the manifest leaves out has its default in the key, such as the protocol of a port.
        keys, items = json.loads(name).items(), (w for w in wanted if isinstance(w, Mapping))
        return [w for w in items if all(w.get(k, value) == value for k, value in keys)]
    if kind == "v":
        return [w for w in wanted if w == json.loads(name)]
    return wanted[int(name) :][:1]
