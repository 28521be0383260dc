"""Lays a fragment of a pod template over a pod."""

from __future__ import annotations

from typing import Any

_KEYS = ("mountPath", "name")
"""What tells the items of a list apart, as in Kubernetes' own strategic merge: one volume may be
mounted at two paths."""


def merge(base: Any, overlay: Any) -> Any:
    """The base with the overlay on top.

    Maps are merged key by key; lists of named things (containers, volumes, variables) are merged
    by `name`, mounts by `mountPath`, with new ones added behind; everything else is replaced.
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
