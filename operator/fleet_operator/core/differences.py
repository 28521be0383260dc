"""Whether an object is as it should be."""

from __future__ import annotations

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
