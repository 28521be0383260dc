"""A fragment of a pod template laid over a pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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


JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from("abc"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("name", "x", "y", "mountPath")), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(base=JSON)
def test_an_object_merged_with_itself_is_unchanged(base):
    assert merge(base, {}) == (base if isinstance(base, dict) else {})


def names_twice(node) -> bool:
    """Whether some list names a thing twice, which no API server takes."""
    if isinstance(node, dict):
        return any(names_twice(v) for v in node.values())
    if not isinstance(node, list):
        return False
    for key in ("name", "mountPath"):
        named = [str(n[key]) for n in node if isinstance(n, dict) and key in n]
        if len(set(named)) < len(named):
            return True
    return any(names_twice(n) for n in node)


@given(base=JSON, overlay=JSON)
def test_merging_an_overlay_twice_equals_merging_it_once(base, overlay):
    assume(not names_twice(base) and not names_twice(overlay))
    once = merge(base, overlay)

    assert merge(once, overlay) == once
