"""The number in a version, by which versions of one run have an order."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"(?:step[_-])?([0-9]{1,18})")
"""18 digits fit into 64 bits. The rule of the CRD for WeightVersions is the same."""


def number_of(version: str) -> int | None:
    """Return the number of a version such as `43`, `step_43` or `step-43`; None for other labels."""
    found = _NUMBERED.fullmatch(version)
    return int(found[1]) if found else None
