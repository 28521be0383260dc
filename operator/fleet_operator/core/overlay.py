"""Lays a fragment of a pod template over a pod."""

from __future__ import annotations

from typing import Any


def merge(base: Any, overlay: Any) -> Any:
    """The base with the overlay on top.

    Maps are merged key by key; lists of named things (containers, volumes, variables) are merged
    by `name`, with new ones added behind; everything else is replaced.
    """
    if isinstance(base, dict) and isinstance(overlay, dict):
        merged = dict(base)
        for key, value in overlay.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    if _is_named_list(base) and _is_named_list(overlay):
        by_name = {item["name"]: item for item in base}
        for item in overlay:
            known = by_name.get(item["name"])
            by_name[item["name"]] = merge(known, item) if known else item
        return list(by_name.values())
    return overlay


def _is_named_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value)
