"""Lays a fragment of a pod template over a pod."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fleet_operator.api.depth import DEEPEST, is_too_deep

_KEYS = ("mountPath", "name")
"""The keys that identify items of a list, as in the strategic merge of Kubernetes. A volume may be
mounted at two paths."""
_ROOT = "spec.podOverlay"


def merge(base: Any, overlay: Any) -> Any:
    """The base with the overlay on top.

    Maps are merged key by key. Lists of containers, volumes and variables are merged by `name`, mounts
    by `mountPath`; new entries come last. Everything else is replaced.
    """
    if isinstance(base, dict) and isinstance(overlay, dict):
        merged = dict(base)
        for key, value in overlay.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    if isinstance(base, list) and isinstance(overlay, list):
        for key in _KEYS:
            if _all_have(key, base) and _all_have(key, overlay):
                return _merge_by(key, base, overlay)
    return overlay


def _merge_by(key: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    merged = {item[key]: item for item in base}
    for item in overlay:
        known = merged.get(item[key])
        merged[item[key]] = item if known is None else merge(known, item)
    return list(merged.values())


def _all_have(key: str, items: list[Any]) -> bool:
    return all(isinstance(i, dict) and isinstance(i.get(key), str) for i in items)


def problem_of(overlay: Mapping[str, Any], *, set_elsewhere: Collection[str] = ()) -> str:
    """Why the operator cannot merge this overlay into a pod; empty if it can.

    Only the rules that the merge needs; the API server checks the rest.

    `set_elsewhere`: fields of the pod's spec that `spec.pod` sets. An overlay must not set them, too.
    """
    if not overlay:
        return ""
    if is_too_deep(overlay):
        return f"{_ROOT}: nested deeper than {DEEPEST} levels"
    other = sorted(overlay.keys() - {"metadata", "spec"})
    if other:
        return f"{_ROOT}.{other[0]}: only metadata and spec are allowed"
    metadata, spec = overlay.get("metadata", {}), overlay.get("spec", {})
    problem = (
        _no_map(_ROOT, overlay, "metadata", "spec")
        or _no_map(f"{_ROOT}.metadata", metadata, "labels", "annotations")
        or _unnamed(f"{_ROOT}.spec", spec, "containers", "initContainers", "volumes")
        or _no_tolerations(f"{_ROOT}.spec.tolerations", spec.get("tolerations", []))
        or _set_twice(spec, set_elsewhere)
    )
    containers = () if problem else spec.get("containers", ())
    variables = (_unnamed(f"{_ROOT}.spec.containers[{c['name']}]", c, "env") for c in containers)
    return problem or next(filter(None, variables), "")


def _set_twice(spec: Mapping[str, Any], set_elsewhere: Collection[str]) -> str:
    twice = sorted(spec.keys() & set(set_elsewhere))
    return (
        f"{_ROOT}.spec.{twice[0]}: spec.pod.{twice[0]} is set, too; remove one of the two"
        if twice
        else ""
    )


def _no_map(path: str, parent: Mapping[str, Any], *keys: str) -> str:
    wrong = (k for k in keys if not isinstance(parent.get(k, {}), dict))
    return next((f"{path}.{k}: must be a map" for k in wrong), "")


def _no_tolerations(path: str, value: Any) -> str:
    """The operator adds its own tolerations, unless the overlay has their keys."""
    if not isinstance(value, list) or not all(isinstance(t, dict) for t in value):
        return f"{path}: must be a list of maps"
    texts = all(isinstance(t.get("key", ""), str) for t in value)
    return "" if texts else f"{path}: key must be a string"


def _unnamed(path: str, parent: Mapping[str, Any], *keys: str) -> str:
    lists = ((k, parent.get(k, [])) for k in keys)
    wrong = (k for k, v in lists if not (isinstance(v, list) and _all_have("name", v)))
    return next((f"{path}.{k}: must be a list of objects with a name" for k in wrong), "")
