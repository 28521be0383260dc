"""Calls that must be refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet_worker.errors import Refusal


def refusal_from(call: Callable[..., object], *arguments: object, **named: object) -> Refusal:
    """Why a call with these arguments was refused."""
    with pytest.raises(Refusal) as refused:
        call(*arguments, **named)
    return refused.value
