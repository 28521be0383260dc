"""Each clause of the external rollout service contract names the tests that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet_worker import protocol
from fleet_worker.provenance.demands import IN_BODY, IN_HEADERS
from rlfleet_resources.reasons import ConditionReason

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/reference/rollout-service-contract.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
CLAUSES = {
    cells[0].strip(): (cells[1], cells[2])
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)
    if section.startswith(("Publication", "Requests"))
    for line in section.splitlines()
    if line.startswith("| ") and not line.startswith(("| Clause", "| ---"))
    for cells in [line.strip("|").split(" | ")]
}


def exists(file: str, test: str) -> bool:
    path = TESTS / file
    return path.is_file() and f"def {test}(" in path.read_text()


@pytest.mark.parametrize("clause", CLAUSES)
def test_each_clause_names_a_test(clause: str) -> None:
    assert NAMED.search(CLAUSES[clause][1])


def test_each_test_that_is_named_exists() -> None:
    assert [f"{f}::{t}" for f, t in NAMED.findall(PAGE) if not exists(f, t)] == []


def test_a_test_that_was_renamed_is_found() -> None:
    assert not exists("contract/test_rollout_service_contract.py", "test_that_is_gone")


def test_each_demand_and_stamp_of_the_public_port_is_a_clause() -> None:
    means = " ".join(means for means, _ in CLAUSES.values())
    names = {
        *(IN_HEADERS.exact, IN_HEADERS.minimum, IN_HEADERS.run),
        *(IN_BODY.exact, IN_BODY.minimum, IN_BODY.run),
        *(protocol.HEADER_VERSION, protocol.HEADER_VERSION_START, protocol.HEADER_VERSION_END),
    }

    assert {name for name in names if f"`{name}`" not in means} == set()


def test_each_reason_on_the_page_exists() -> None:
    means = " ".join(means for means, _ in CLAUSES.values())
    reasons = set(re.findall(r"`([A-Z][a-z]+[A-Z]?[A-Za-z]+)`", means)) - {"Stalled"}

    assert reasons <= {reason.value for reason in ConditionReason}
    assert {"VersionReused", "DigestMismatch"} <= reasons
