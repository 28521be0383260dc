"""Mark the cases of a parametrized table that only long runs need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def others_long(every_time: Collection[str], cases: Sequence[Any]) -> list[Any]:
    """Return all cases of a table. Those that are not named here have the marker `long`.

    `every_time`: ids of cases that `make test` runs.
    """
    unknown = set(every_time) - {case.id for case in cases}
    assert not unknown, f"no cases: {sorted(unknown)}"
    return [
        case
        if case.id in every_time
        else pytest.param(*case.values, marks=(*case.marks, pytest.mark.long), id=case.id)
        for case in cases
    ]
