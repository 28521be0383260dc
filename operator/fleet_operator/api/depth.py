"""Limits how deep maps and lists of an object are nested, where any content is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator

DEEPEST = 100
"""No field of a pod is a quarter as deep."""


def is_too_deep(value: Any) -> bool:
    """Whether maps and lists are nested deeper than `DEEPEST`. A loop, because the value may be very deep."""
    row = [value]
    for _ in range(DEEPEST):
        row = [each for parent in row for each in _children(parent)]
        if not row:
            return False
    return any(isinstance(each, dict | list) for each in row)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _limited(value: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(value):
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return value


FreeMap = Annotated[dict[str, Any], AfterValidator(_limited)]
"""A map that the API server checks, of a depth that can be written as JSON."""
