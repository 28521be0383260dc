"""Whether an object is as it should be: what else stands in it does not matter."""

from __future__ import annotations

import pytest

from fleet_operator.core.differences import holds


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, id="more keys than asked for"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, id="more keys further down"),
        pytest.param({"a": 1}, {}, id="nothing is asked for"),
        pytest.param([{"a": 1, "b": 2}, 3], [{"a": 1}, 3], id="lists of one length, item by item"),
        pytest.param({"a": None}, {"a": None}, id="nothing, where nothing should be"),
    ],
)
def test_it_is_as_it_should_be(actual, wanted):
    assert holds(actual, wanted) is True


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        pytest.param({"a": 1}, {"a": 2}, id="another value"),
        pytest.param({"a": 1}, {"b": 1}, id="a key that is missing"),
        pytest.param({}, {"a": None}, id="a key that is missing is not one without a value"),
        pytest.param({"a": 1}, {"a": {"b": 1}}, id="a value where a map should be"),
        pytest.param(
            {"selector": {"a": 1, "b": 2}}, {"selector": {"a": 1}}, id="a narrower selector"
        ),
        pytest.param("ab", {"a": 1}, id="a text where a map should be"),
        pytest.param([1, 2], [1], id="a longer list"),
        pytest.param([1], [1, 2], id="a shorter list"),
        pytest.param([2, 1], [1, 2], id="a list in another order"),
        pytest.param("ab", ["a", "b"], id="a text where a list should be"),
        pytest.param({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, id="another value far down"),
    ],
)
def test_it_differs(actual, wanted):
    assert holds(actual, wanted) is False
