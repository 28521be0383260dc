"""The page of the chart's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from chart_page import Value, read_values, readme_with_values, values_page

VALUES = Path(__file__).parents[3] / "charts/rlfleet/values.yaml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("# -- One.\n# More.\na: 1\n", [Value("a", 1, "One. More.")], id="two lines"),
        pytest.param("# Not a value.\n\na: 1\n", [Value("a", 1, "")], id="another comment"),
        pytest.param(
            "m:\n  # -- The key.\n  k: x\n", [Value("m.k", "x", "The key.")], id="a key of a map"
        ),
        pytest.param(
            "# -- All of it.\nm:\n  k: x\n  l: y\nn: 2\n",
            [Value("m", {"k": "x", "l": "y"}, "All of it."), Value("n", 2, "")],
            id="a map with a comment",
        ),
        pytest.param("m: {k: x}\n", [Value("m", {"k": "x"}, "")], id="a map on one line"),
    ],
)
def test_values_are_read_with_their_comments(text: str, expected: list[Value]) -> None:
    assert list(read_values(text)) == expected


def test_each_value_of_the_chart_has_a_meaning() -> None:
    values = list(read_values(VALUES.read_text()))

    assert len(values) > 50
    assert [v.path for v in values if not v.meaning] == []


def test_a_pipe_in_a_value_is_escaped() -> None:
    assert r'| `"a\|b"` |' in values_page('# -- A.\nx: "a|b"\n', "")


def test_the_readme_of_the_chart_ends_with_the_table_of_its_values() -> None:
    first = readme_with_values("# A chart\n", "# -- One.\na: 1\n")
    second = readme_with_values(first, "# -- Two.\nb: 2\n")

    assert first.startswith("# A chart\n\n| Value |")
    assert first.endswith("| `a` | `1` | One. |\n")
    assert second == first.replace("| `a` | `1` | One. |", "| `b` | `2` | Two. |")
