"""A fragment of a pod template laid over a pod."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleet_operator.core.manifests.overlay import merge

A = {"name": "a", "image": "one", "env": [{"name": "X", "value": "1"}]}
B = {"name": "b", "image": "two"}


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        pytest.param({"x": 1}, {}, {"x": 1}, id="an empty overlay changes nothing"),
        pytest.param({"x": 1}, {"y": 2}, {"x": 1, "y": 2}, id="new keys are added"),
        pytest.param({"x": 1}, {"x": 2}, {"x": 2}, id="values are replaced"),
        pytest.param(
            {"x": {"y": 1, "z": 2}}, {"x": {"y": 3}}, {"x": {"y": 3, "z": 2}}, id="maps are merged"
        ),
        pytest.param([A, B], [{"name": "b", "image": "x"}], [A, B | {"image": "x"}], id="by name"),
        pytest.param([A], [B], [A, B], id="new named things come behind"),
        pytest.param(
            [A],
            [{"name": "a", "env": [{"name": "Y", "value": "2"}]}],
            [A | {"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}],
            id="named lists in named lists are merged too",
        ),
        pytest.param([1, 2], [3], [3], id="lists of plain values are replaced"),
        pytest.param(
            [{"key": "gpu"}], [{"key": "spot"}], [{"key": "spot"}], id="tolerations are replaced"
        ),
        pytest.param({"x": 1}, {"x": None}, {"x": None}, id="null replaces"),
        pytest.param({"x": {"y": 1}}, {"x": "text"}, {"x": "text"}, id="other kinds replace"),
        pytest.param([A], [], [A], id="an empty list adds nothing to named things"),
        pytest.param([], [A, B], [A, B], id="named things are added to an empty list"),
        pytest.param(
            [{"name": "w", "mountPath": "/weights"}],
            [{"name": "w", "mountPath": "/old", "subPath": "old"}],
            [
                {"name": "w", "mountPath": "/weights"},
                {"name": "w", "mountPath": "/old", "subPath": "old"},
            ],
            id="one volume can be mounted twice",
        ),
        pytest.param(
            [],
            [{"name": "w", "mountPath": "/a"}, {"name": "w", "mountPath": "/b"}],
            [{"name": "w", "mountPath": "/a"}, {"name": "w", "mountPath": "/b"}],
            id="a volume that the overlay mounts twice stays mounted twice",
        ),
        pytest.param(
            [{"name": "w", "mountPath": "/a", "readOnly": True}],
            [{"name": "v", "mountPath": "/a"}],
            [{"name": "v", "mountPath": "/a", "readOnly": True}],
            id="another volume takes the place of a mount",
        ),
    ],
)
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
