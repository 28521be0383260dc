"""Messages of statuses and Events are made for no terminal: pods, workers and users write parts of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rlfleet_resources import fleet_status, weights_status
from rlfleet_resources.base import Message, printable
from rlfleet_resources.conditions import Condition, new_condition, shortened
from rlfleet_resources.reasons import ConditionReason, ConditionType

EVIL = "a\u202eb\x1b[31mc\x1b]0;d\x07e\r\nf\u2028g\u200bh\ud800i"
NOW = datetime(2026, 11, 28, tzinfo=UTC)


def condition(message: str) -> Condition:
    return new_condition(
        (),
        ConditionType.STALLED,
        is_true=True,
        reason=ConditionReason.INVALID_SPEC,
        message=message,
        generation=1,
        now=NOW,
    )


def test_what_a_terminal_would_obey_is_shown_by_its_escape() -> None:
    shown = condition(EVIL).message

    assert shown.isprintable()
    assert shown == "a\\u202eb\\x1b[31mc\\x1b]0;d\\x07e  f g\\u200bh\\ud800i"


@given(st.text())
def test_a_text_is_made_printable_once(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert len(shortened(text, 100)) <= 100


@pytest.mark.parametrize("module", [fleet_status, weights_status])
def test_every_message_of_a_status_is_one(module: Any) -> None:
    models = [each for each in vars(module).values() if isinstance(each, type)]
    fields = [
        model.model_fields["message"]
        for model in models
        if issubclass(model, BaseModel) and "message" in model.model_fields
    ]

    assert fields
    assert all(printable in [getattr(m, "func", None) for m in field.metadata] for field in fields)
    assert Message.__metadata__[0].func is printable
