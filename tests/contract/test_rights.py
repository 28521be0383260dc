"""The page about rights says what the operator asks for; the chart is held to the same elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from fleet_operator.runtime import permissions

PAGE = Path(__file__).parents[2] / "docs/reference/rbac.md"
ROW = re.compile(r"^\| (core|`[^`]+`) \| `([^`]+)` \| ((?:`[a-z]+` ?)+)\|", re.MULTILINE)


def test_the_page_lists_exactly_the_rights_that_are_asked_for() -> None:
    listed = {
        ("" if group == "core" else group.strip("`"), resource, tuple(re.findall(r"\w+", verbs)))
        for group, resource, verbs in ROW.findall(PAGE.read_text())
    }
    lease = (permissions.LEASE_GROUP, "leases", permissions.LEASE_VERBS)

    assert listed == {*permissions.NEEDED, lease}


def test_no_right_is_asked_for_twice() -> None:
    places = [(group, resource) for group, resource, _ in permissions.NEEDED]

    assert len(places) == len(set(places))
