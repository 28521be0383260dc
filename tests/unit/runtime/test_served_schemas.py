"""The operator knows which of its status fields the cluster's CRDs permit, and writes the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import make_condition
from tests.support.fake_kube import FakeCluster
from tests.support.identities import D1, pin
from tests.support.served import INDEX, closed, schemas, serve
from tests.support.sessions import make_session

from fleet_operator.errors import Retryable, Terminal
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.served_schemas import LOOK_SECONDS, ServedSchemas
from fleet_operator.runtime.status_writer import PROGRESS_SECONDS
from fleet_operator.runtime.store import FleetRecord
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
READY = make_condition(ConditionType.READY)
STATUS = FleetStatus(
    observed_generation=1,
    desired_version="1",
    endpoint="http://policy.rl.svc:8000",
    pinned=(pin("1", "/weights/1", D1),),
    conditions=(READY,),
)


class Served:
    """The schemas of a cluster, and how often a change was noted."""

    def __init__(self, served: dict[str, Any] | None = None) -> None:
        self.cluster = FakeCluster()
        if served is not None:
            serve(self.cluster, served)
        self.kube = self.cluster.client()
        self.changes = 0
        self.schemas = ServedSchemas(self.kube, self._count)

    def _count(self) -> None:
        self.changes += 1

    @property
    def documents_read(self) -> int:
        return sum(path.startswith(f"{INDEX}/") for _, path in self.kube.requests)


def older() -> dict[str, Any]:
    found = closed()
    del found["inferencefleets"]["properties"]["endpoint"]
    del found["weightversions"]["properties"]["history"]
    found["weightversions"]["properties"]["retried"]["maxLength"] = 3
    return found


async def test_nothing_is_missing_from_the_crds_of_this_release():
    its = Served(schemas())
    await its.schemas.look()
    assert its.schemas.missing == {"inferencefleets": (), "weightversions": ()}
    assert (its.schemas.problem, its.schemas.describe(), its.changes) == (None, "", 1)


async def test_what_older_crds_lack_is_named_on_fleets_and_by_the_process():
    its = Served(older())
    await its.schemas.look()
    assert its.schemas.missing == {
        "inferencefleets": ("status.endpoint",),
        "weightversions": ("status.history", "status.retried (maxLength 3)"),
    }
    problem = its.schemas.problem
    assert problem is not None
    assert (problem.reason, problem.leaves_ready) == (ConditionReason.CRD_OUTDATED, True)
    problems = Problems()
    problems.of_all = problem
    assert problems.of(("any", "fleet")) == (problem,)
    for text in (problem.message, its.schemas.describe()):
        assert "inferencefleets.rlfleet.dev status.endpoint" in text
        assert "weightversions.rlfleet.dev status.history" in text


async def test_only_a_new_document_is_read_and_a_change_is_noted_once():
    its = Served(older())
    running = asyncio.create_task(its.schemas.run())
    await asyncio.sleep(4 * LOOK_SECONDS)
    assert (its.documents_read, its.changes) == (1, 1)
    serve(its.cluster, schemas())
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert (its.documents_read, its.changes, its.schemas.problem) == (2, 2, None)
    running.cancel()
    await asyncio.wait([running])


async def test_a_refused_status_leads_to_a_look_and_many_to_few():
    its = Served(schemas())
    running = asyncio.create_task(its.schemas.run())
    await asyncio.sleep(LOOK_SECONDS + 5)
    before = len(its.kube.requests)
    for _ in range(100):
        its.schemas.look_soon()
        await asyncio.sleep(0.1)
    assert 4 <= len(its.kube.requests) - before <= 6
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(
    ("error", "document"),
    [
        pytest.param(Terminal("403 forbidden"), None, id="the right is missing"),
        pytest.param(Retryable("503"), None, id="no answer"),
        pytest.param(None, {"paths": {}}, id="no document of the group"),
        pytest.param(None, {"paths": []}, id="another form"),
        pytest.param(None, None, id="no index"),
    ],
)
async def test_a_server_that_does_not_say_is_reported_as_unknown_and_nothing_is_left_out(
    error, document
):
    its = Served()
    if document is not None:
        its.cluster.objects[INDEX] = document
    its.kube.error = error
    await its.schemas.look()
    assert its.schemas.problem is None
    assert "not known" in its.schemas.describe()
    assert its.schemas.missing == {}
    assert its.schemas.fitting("inferencefleets", {"new": 1}) == {"new": 1}


async def test_a_server_that_fails_for_a_while_serves_what_it_served():
    its = Served(older())
    await its.schemas.look()
    its.kube.error = Retryable("503")
    await its.schemas.look()
    assert its.schemas.problem is not None
    assert its.changes == 1


class Writer:
    """The status of a fleet under the CRDs of a cluster, which checks what is written."""

    def __init__(self, served: dict[str, Any]) -> None:
        self.its = Served(served)
        self.cluster = self.its.cluster
        version = self.cluster.put(PATH, {"metadata": {"uid": "fleet-1"}})["metadata"][
            "resourceVersion"
        ]
        self.statuses = make_session(self.its.kube, schemas=self.its.schemas).statuses
        self.record = FleetRecord(
            uid="fleet-1",
            version=version,
            generation=1,
            deleting=False,
            spec=None,
            status=FleetStatus(),
        )

    async def write(self, status: FleetStatus) -> bool:
        """Write a status if it is due. Returns: whether it was."""
        before = self.statuses.fleet(self.record)
        self.statuses.take_fleet("fleet-1", before, status)
        due = self.statuses.is_due("fleet-1")
        if due:
            await self.statuses.write("fleet-1")
        return due

    @property
    def stored(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects[f"{PATH}/status"]["status"]
        return found


async def test_a_status_is_written_once_without_what_the_crd_lacks_and_whole_under_a_newer_one():
    writer = Writer(older())
    await writer.its.schemas.look()
    assert await writer.write(STATUS)
    assert "endpoint" not in writer.stored
    assert writer.stored["conditions"] == [READY.to_json()]
    for _ in range(5):
        await asyncio.sleep(PROGRESS_SECONDS)
        assert not await writer.write(STATUS)

    serve(writer.cluster, schemas())
    await writer.its.schemas.look()
    writer.statuses.write_again()
    assert await writer.write(STATUS)
    assert writer.stored == STATUS.to_json()


async def test_a_status_that_is_written_again_under_other_crds_was_not_undone_by_another_writer():
    writer = Writer(older())
    await writer.its.schemas.look()
    assert await writer.write(STATUS)
    for _ in range(5):
        await asyncio.sleep(PROGRESS_SECONDS)
        writer.statuses.write_again()
        assert await writer.write(STATUS)


async def test_a_change_of_metadata_leaves_a_status_that_an_older_crd_has_cut_as_it_is():
    """Else each one is answered with a write, and those count as undone by another controller."""

    writer = Writer(older())
    await writer.its.schemas.look()
    assert await writer.write(STATUS)
    for number in range(4):
        await asyncio.sleep(2 * PROGRESS_SECONDS)
        before = writer.cluster.objects[PATH]
        metadata = before["metadata"] | {"annotations": {"number": str(number)}}
        after = writer.cluster.put(PATH, before | {"metadata": metadata})
        stored = FleetStatus.read(writer.stored)
        version = after["metadata"]["resourceVersion"]
        writer.record = replace(writer.record, version=version, status=stored)
        assert not await writer.write(STATUS)


@pytest.mark.parametrize("field", ["pinned", "digest"])
async def test_a_pin_that_the_crd_does_not_permit_does_not_count_as_stored(field):
    """Else the label would be free after a restart of the operator."""

    served = closed()
    fields = served["inferencefleets"]["properties"]
    if field == "pinned":
        del fields["pinned"]
    else:
        del fields["pinned"]["items"]["properties"]["digest"]
        fields["pinned"]["items"]["required"] = ["version"]
    writer = Writer(served)
    await writer.its.schemas.look()
    assert await writer.write(STATUS)

    assert writer.statuses.stored(writer.record).pinned == ()
    assert writer.statuses.fleet(writer.record).pinned == STATUS.pinned
