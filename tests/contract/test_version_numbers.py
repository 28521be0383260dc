"""All of us and the API server number versions by one rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlfleet_resources.source import number_of

CRD = Path(__file__).parents[2] / "crds" / "weightversions.yaml"
VERSIONS = [
    ("43", 43),
    ("step_43", 43),
    ("step-43", 43),
    ("007", 7),
    ("9" * 18, 10**18 - 1),
    ("9" * 19, None),
    ("step43", None),
    ("43-final", None),
    ("v43", None),
    ("-43", None),
    ("٤٣", None),
    ("43\n", None),
    ("", None),
]


@pytest.mark.parametrize(("version", "number"), VERSIONS)
def test_a_numbered_version_has_its_number(version: str, number: int | None) -> None:
    assert number_of(version) == number


def test_the_api_server_numbers_the_same_versions() -> None:
    rules = set(
        re.findall(r"self\.version\.matches\('\^(.*?)\$'\)", CRD.read_text(), re.IGNORECASE)
    )
    (rule,) = rules

    assert {v for v, n in VERSIONS if n is not None} == {
        v for v, _ in VERSIONS if re.fullmatch(rule, v)
    }
