"""Conditions, and the one way to set one. Types and reasons: `rlfleet_resources.reasons`.

Messages name pods and numbers and say what to do. `lastTransitionTime` moves only when the status flips.
Source: Kubernetes API conventions, "Typical status properties".
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from rlfleet_resources.base import Message, Resource, Timestamp, printable
from rlfleet_resources.reasons import ConditionReason, ConditionType

MAX_MESSAGE_CHARACTERS = 1024
MAX_CONDITIONS = 10
_LEFT_OUT = " [...] "


class Condition(Resource):
    """One entry of `status.conditions`."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: ConditionReason
    message: Message
    observed_generation: int
    last_transition_time: Timestamp


def condition_of(
    conditions: Iterable[Condition], condition_type: ConditionType
) -> Condition | None:
    """The condition of that type, if it is there."""
    for condition in conditions:
        if condition.type is condition_type:
            return condition
    return None


def shortened(message: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """The message as it may be shown, without its middle if it has more than `most` characters: its end is the remedy.

    `most`: at least 20.
    """
    message = printable(message)
    if len(message) <= most:
        return message
    kept = most - len(_LEFT_OUT)
    return message[: kept - kept // 2] + _LEFT_OUT + message[-(kept // 2) :]


def new_condition(
    previous: Iterable[Condition],
    condition_type: ConditionType,
    *,
    is_true: bool,
    reason: ConditionReason,
    message: str,
    generation: int,
    now: datetime,
) -> Condition:
    """A condition that keeps its transition time unless its status flips."""
    status: Literal["True", "False"] = "True" if is_true else "False"
    before = condition_of(previous, condition_type)
    kept = before is not None and before.status == status
    message = shortened(message)
    if (
        before is not None
        and kept
        and before.reason == reason
        and before.message == message
        and before.observed_generation == generation
    ):
        return before  # most conditions do not change: this one needs no second validation
    return Condition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and kept else now,
    )
