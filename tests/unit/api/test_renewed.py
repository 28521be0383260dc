"""`renewed` returns the same object if no field has changed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlfleet_resources.base import renewed
from rlfleet_resources.fleet_status import WorkerCounts

COUNTS = WorkerCounts(total=3, serving=2, joining=1)
FIELDS = dict(COUNTS)


def test_an_object_with_the_same_fields_is_reused() -> None:
    assert renewed(COUNTS, **FIELDS) is COUNTS


def test_an_object_with_a_changed_field_is_new() -> None:
    made = renewed(COUNTS, **(FIELDS | {"serving": 3, "joining": 0}))
    assert (made.total, made.serving, made.joining) == (3, 3, 0)
    assert (COUNTS.serving, COUNTS.joining) == (2, 1)


def test_a_new_object_is_validated() -> None:
    with pytest.raises(ValidationError):
        renewed(COUNTS, **(FIELDS | {"total": "many"}))
