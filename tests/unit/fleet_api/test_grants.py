"""The namespace of an External fleet grants the RL API its admin token, or an administrator names the fleet."""

from __future__ import annotations

import base64

import pytest
from tests.support.builders import make_spec
from tests.support.fake_cluster import FLEET_UID, FakeCluster

from fleet_api.fleets import Fleet
from fleet_api.grants import Grants
from fleet_api.problems import Problem
from fleet_operator.places import Places
from rlfleet.errors import Forbidden
from rlfleet_resources.fleet_status import FleetStatus

SECRET = "/api/v1/namespaces/rl/secrets/policy-admin-token"
NAMED, OTHER = ("rl", "policy"), ("rl", "other")


def fleet(management: str = "External") -> Fleet:
    spec = make_spec(weights={"roots": ["/w"], "management": management})
    return Fleet(
        namespace="rl", name="policy", uid=FLEET_UID, generation=1, spec=spec, status=FleetStatus()
    )


def cluster_with(*, right: bool) -> FakeCluster:
    found = FakeCluster()
    found.secrets[SECRET] = {
        "metadata": {"ownerReferences": [{"uid": FLEET_UID}]},
        "data": {"token": base64.b64encode(b"the-token").decode()},
    }

    def refuse(path: str) -> None:
        if "secrets" in path and not right:
            raise Forbidden(f"GET {path}")

    found.fail = refuse
    return found


@pytest.mark.parametrize(
    ("named", "right", "calls"),
    [
        ((), True, True),
        ((), False, False),
        ((NAMED, OTHER), True, True),
        ((OTHER,), True, False),
    ],
    ids=["granted", "not granted", "named", "granted, but others are named"],
)
async def test_a_fleet_is_called_if_its_namespace_grants_it_and_the_list_does_not_forbid_it(
    named, right, calls
):
    grants = Grants(named, cluster_with(right=right), Places(8))

    assert await grants.permit(fleet()) is calls
    if calls:
        assert await grants.admin_token(fleet()) == "the-token"
        return
    with pytest.raises(Problem) as refused:
        await grants.admin_token(fleet())
    assert refused.value.reason == "ExternallyManaged"


async def test_a_named_fleet_whose_secret_may_not_be_read_is_a_fault_of_the_chart():
    with pytest.raises(Forbidden):
        await Grants((NAMED,), cluster_with(right=False), Places(8)).admin_token(fleet())


async def test_the_secret_of_a_fleet_that_the_operator_manages_is_not_read():
    cluster = cluster_with(right=True)

    assert not await Grants((), cluster, Places(8)).permit(fleet("Operator"))
    assert cluster.calls == []
