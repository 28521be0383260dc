"""Cases of which `make test` runs the first ones and `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_ones_short(cases: Iterable[Any], count: int) -> list[Any]:
    """Parameters of a test: the cases, of which all but the first `count` are `long`."""
    found = list(cases)
    return [*found[:count], *(pytest.param(c, marks=pytest.mark.long) for c in found[count:])]
