"""Conditions from tables: of the rows of a table, the first that applies counts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rlfleet_resources.conditions import Condition, new_condition
from rlfleet_resources.reasons import ConditionReason, ConditionType

Row = tuple[object, bool, ConditionReason, str]
"""Whether the row applies, whether the condition is true then, its reason and its message."""
Made = tuple[ConditionType, bool, ConditionReason, str]


def first_of(kind: ConditionType, *rows: Row) -> Made | None:
    """Returns the condition of the first row that applies; None if no row applies."""
    for applies, is_true, reason, message in rows:
        if applies:
            return kind, is_true, reason, message
    return None


def conditions_of(
    made: Iterable[Made | None], before: Iterable[Condition], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Returns the conditions. `before`: those of the last status."""
    return tuple(
        new_condition(
            before,
            kind,
            is_true=is_true,
            reason=reason,
            message=message,
            generation=generation,
            now=now,
        )
        for kind, is_true, reason, message in filter(None, made)
    )
