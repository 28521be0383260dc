"""A fragment of a pod template laid over a pod."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.core.manifests.overlay import merge

A = {"name": "a", "image": "one", "env": [{"name": "X", "value": "1"}]}
B = {"name": "b", "image": "two"}


W_AT_WEIGHTS, W_AT_OLD, V = (
    {"name": "w", "mountPath": "/weights"},
    {"name": "w", "mountPath": "/old", "subPath": "old"},
    {"name": "v", "mountPath": "/weights"},
)
X, Y = {"name": "X", "value": "1"}, {"name": "Y", "value": "2"}
MERGED: dict[str, tuple[Any, Any, Any]] = {
    "an empty overlay changes nothing": ({"x": 1}, {}, {"x": 1}),
    "new keys are added": ({"x": 1}, {"y": 2}, {"x": 1, "y": 2}),
    "values are replaced": ({"x": 1}, {"x": 2}, {"x": 2}),
    "maps are merged": ({"x": {"y": 1, "z": 2}}, {"x": {"y": 3}}, {"x": {"y": 3, "z": 2}}),
    "by name": ([A, B], [{"name": "b", "image": "x"}], [A, B | {"image": "x"}]),
    "new named things come behind": ([A], [B], [A, B]),
    "named lists in named lists are merged": ([A], [A | {"env": [Y]}], [A | {"env": [X, Y]}]),
    "lists of plain values are replaced": ([1, 2], [3], [3]),
    "tolerations are replaced": ([{"key": "gpu"}], [{"key": "spot"}], [{"key": "spot"}]),
    "null replaces": ({"x": 1}, {"x": None}, {"x": None}),
    "other kinds replace": ({"x": {"y": 1}}, {"x": "text"}, {"x": "text"}),
    "an empty list adds nothing to named things": ([A], [], [A]),
    "named things are added to an empty list": ([], [A, B], [A, B]),
    "a volume can be mounted twice": ([W_AT_WEIGHTS], [W_AT_OLD], [W_AT_WEIGHTS, W_AT_OLD]),
    "also by the overlay": ([], [W_AT_WEIGHTS, W_AT_OLD], [W_AT_WEIGHTS, W_AT_OLD]),
    "another volume takes the place of a mount": (
        [W_AT_WEIGHTS | {"readOnly": True}],
        [V],
        [V | {"readOnly": True}],
    ),
}


@pytest.mark.parametrize(("base", "overlay", "merged"), MERGED.values(), ids=MERGED)
def test_an_overlay_is_merged(base, overlay, merged):
    assert merge(base, overlay) == merged
