"""Shares of the replicas become numbers."""

from __future__ import annotations

import pytest

from fleet_operator.core.percentages import at_least, at_most, rounded_down, rounded_up


@pytest.mark.parametrize(
    ("amount", "replicas", "down", "up"),
    [
        (0, 10, 0, 0),
        (3, 2, 3, 3),
        ("0%", 10, 0, 0),
        ("1%", 10, 0, 1),
        ("25%", 10, 2, 3),
        ("25%", 0, 0, 0),
        ("99%", 1, 0, 1),
        ("100%", 7, 7, 7),
        ("250%", 3, 7, 8),
    ],
)
def test_a_percentage_is_rounded_up_or_down(amount, replicas, down, up):
    assert rounded_down(amount, replicas) == down
    assert rounded_up(amount, replicas) == up
    assert at_most(amount, replicas) == max(1, down)
    assert at_least(amount, replicas) == max(1, up)
