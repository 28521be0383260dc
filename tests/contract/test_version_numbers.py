"""The client and the cluster number versions by one rule, since a trainer compares their figures.

The client shares no module with the cluster, so each has the rule.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet_worker.protocol import number_of
from rlfleet.metrics import number_of as number_in_the_client

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
def test_the_client_and_the_cluster_see_the_same_number(version: str, number: int | None) -> None:
    assert number_of(version) == number_in_the_client(version) == number


def test_the_api_server_numbers_the_same_versions() -> None:
    rules = set(
        re.findall(r"self\.version\.matches\('\^(.*?)\$'\)", CRD.read_text(), re.IGNORECASE)
    )
    (rule,) = rules

    assert {v for v, n in VERSIONS if n is not None} == {
        v for v, _ in VERSIONS if re.fullmatch(rule, v)
    }
