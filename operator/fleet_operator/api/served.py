"""Compares the status schema that the API server serves with this release's, and fits statuses into it: pure.

The CRDs may be of another release, for example with the chart's `crds.enabled=false`. The API server refuses a
whole status for one field or value that its schema does not permit. So a status is written without these, and
what is missing is reported.

Schemas are structural ones. Source: Kubernetes, apiextensions.k8s.io/v1 JSONSchemaProps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Schema = Mapping[str, Any]
_KEEPS = "x-kubernetes-preserve-unknown-fields"
_RULES = "x-kubernetes-validations"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_NOTHING = object()
"""The result for a part that cannot be written."""


@cache
def own_schemas() -> dict[str, Schema]:
    """The schemas of the statuses in the CRDs of this release, by the plural of the kind."""
    text = files("fleet_operator.api").joinpath("status_schemas.json").read_text("utf-8")
    found: dict[str, Schema] = json.loads(text)
    return found


def missing_from(served: Schema, own: Schema, path: str = "status") -> Iterator[str]:
    """Yields what the served schema does not permit, and this release's does."""
    if served.get("type") != own.get("type"):
        yield f"{path} (type {own.get('type')})"
        return
    yield from (f"{path} ({limit})" for limit in _tighter(served, own))
    there = served.get("properties") or {}
    for name, inner in (own.get("properties") or {}).items():
        if name in there:
            yield from missing_from(there[name], inner, f"{path}.{name}")
        elif not served.get(_KEEPS):
            yield f"{path}.{name}"
    if "items" in own and "items" in served:
        yield from missing_from(served["items"], own["items"], f"{path}[]")


def _tighter(served: Schema, own: Schema) -> Iterator[str]:
    """Yields the limits of a part that are tighter than this release's."""
    if "enum" in served:
        yield from (v for v in own.get("enum") or ("any text",) if v not in served["enum"])
    for limit in ("maxItems", "maxLength", "maximum"):
        if limit in served and served[limit] < own.get(limit, float("inf")):
            yield f"{limit} {served[limit]}"
    if "pattern" in served and served["pattern"] != own.get("pattern"):
        yield f"pattern {served['pattern']}"
    needed = set(served.get("required") or ()) - set(own.get("required") or ())
    yield from (f"requires {name}" for name in sorted(needed))
    known = {rule["rule"] for rule in own.get(_RULES) or ()}
    yield from (r["rule"] for r in served.get(_RULES) or () if r["rule"] not in known)


def fitting(status: dict[str, Any], served: Schema) -> dict[str, Any]:
    """The status without what the served schema does not permit. Long texts and lists are cut."""
    found = _fitting(status, served)
    return found if isinstance(found, dict) else {}


def _fitting(value: Any, schema: Schema) -> Any:
    permitted = "enum" not in schema or value in schema["enum"]
    if not permitted or not _is_of(schema.get("type", ""), value):
        return _NOTHING
    match value:
        case dict():
            return _object(value, schema)
        case list():
            entries = (_fitting(each, schema.get("items") or {}) for each in value)
            kept = [each for each in entries if each is not _NOTHING]
            return kept[: schema.get("maxItems", len(kept))]
        case str():
            return _text(value, schema)
        case int() | float():
            within = schema.get("minimum", value) <= value <= schema.get("maximum", value)
            return value if within else _NOTHING
    return value


def _is_of(kind: str, value: Any) -> bool:
    """Whether a value is of a type of schemas. In Python a boolean is a number, too."""
    if isinstance(value, bool):
        return kind in {"boolean", ""}
    return isinstance(value, _TYPES.get(kind, (object,)))


def _object(value: dict[str, Any], schema: Schema) -> Any:
    known = schema.get("properties")
    if known is None:
        return value
    found = {}
    for name, inner in value.items():
        if name in known:
            fits = _fitting(inner, known[name])
        else:
            fits = inner if schema.get(_KEEPS) else _NOTHING
        if fits is not _NOTHING:
            found[name] = fits
    lacks = any(name not in found for name in schema.get("required") or ())
    return _NOTHING if lacks else found


def _text(value: str, schema: Schema) -> Any:
    text = value[: schema.get("maxLength", len(value))]
    short = len(text) < schema.get("minLength", 0)
    strange = "pattern" in schema and re.search(schema["pattern"], text) is None
    return _NOTHING if short or strange else text
