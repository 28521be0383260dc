"""The page about rights says what the operator asks for; the chart is held to the same elsewhere."""

from __future__ import annotations

import re

import yaml
from tests.support.pages import DOCS, blocks

from fleet_operator.runtime import permissions
from stack.trainer import trainer_account

PAGE = DOCS / "reference/rbac.md"
ROW = re.compile(r"^\| (core|`[^`]+`) \| `([^`]+)` \| ((?:`[a-z]+` ?)+)\|", re.MULTILINE)


def test_the_page_lists_exactly_the_rights_that_the_operator_requests() -> None:
    listed = {
        ("" if group == "core" else group.strip("`"), resource, tuple(re.findall(r"\w+", verbs)))
        for group, resource, verbs in ROW.findall(PAGE.read_text())
    }
    lease = (permissions.LEASE_GROUP, "leases", permissions.LEASE_VERBS)
    heartbeat = (permissions.LEASE_GROUP, "leases", permissions.HEARTBEAT_VERBS)

    assert listed == {*permissions.NEEDED, lease, heartbeat}


def test_the_operator_requests_no_right_twice() -> None:
    places = [(group, resource) for group, resource, _ in permissions.NEEDED]

    assert len(places) == len(set(places))


def test_the_trainers_of_demo_and_examples_have_the_documented_role() -> None:
    (documented,) = map(yaml.safe_load, blocks("docs/reference/rbac.md", "yaml"))
    _, role, _ = trainer_account("trainer", ["policy"], "policy")

    assert role["rules"] == documented["rules"]
