"""Every rule of the admin port has a test, and the table that says which."""

from __future__ import annotations

import re

import pytest
from tests.engine.requirements import CONTROL, DATA, covered
from tests.support.environments import REPOSITORY

TABLE = (REPOSITORY / "docs" / "reference" / "control.md").read_text()
ROW = re.compile(r"^\| ([A-Z]{2}-\d+) \| .* \| `(test_[a-z_]+\.py)` \| .* \|$", re.MULTILINE)


@pytest.mark.parametrize("requirement", CONTROL)
def test_a_rule_of_the_admin_port_has_a_test_on_the_real_engine(requirement: str) -> None:
    assert covered().get(requirement), f"no test is named for {requirement}"


@pytest.mark.parametrize("requirement", CONTROL)
def test_the_table_names_the_file_of_its_test(requirement: str) -> None:
    rows = dict(ROW.findall(TABLE))
    files = {test.partition("::")[0] for test in covered()[requirement]}

    assert rows.get(requirement) in files


def test_no_test_is_named_for_a_rule_that_there_is_not() -> None:
    assert set(covered()) <= {*CONTROL, *DATA}
