"""The status answers users' questions: versions per worker, since when, and which files must stay."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from tests.cluster.support.admin import Json
from tests.cluster.support.workspace import FLEET, Workspace
from tests.model.fake_state import digest_of
from tests.support.identities import pin
from tests.support.sessions import make_sessions

from fleet_operator.clients.kube import KubeClient
from fleet_operator.errors import Conflict
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import FleetRecord
from rlfleet_resources import names
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus
from rlfleet_resources.source import WeightSource

NEWER = {"since": "2026-01-01T00:00:00Z", "sealed": [{"version": "8"}]}
"""A field of a later release."""


@pytest.mark.usefixtures("shared_operator")
async def test_status_says_which_versions_serve_and_which_sources_must_stay(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(
        replicas=3, version="1", rollout={"strategy": "Rolling", "maxUnavailable": 1}
    )
    await workspace.applied("1")
    first = await _status(workspace)
    assert first["versions"] == [{"version": "1", "digest": digest_of("1"), "workers": 3}]
    assert _paths(first) == {"/weights/base", "/weights/step_1"}

    for worker in workspace.kubelet.workers:
        worker.slow_seconds = 0.5
    await workspace.publish("2")
    mixed = await workspace.until(lambda: _differing(workspace), "workers differ")
    assert sum(v["workers"] for v in mixed["versions"]) <= 3
    assert _paths(mixed) == {"/weights/base", "/weights/step_1", "/weights/step_2"}

    await workspace.applied("2")
    second = await _status(workspace)
    assert second["versions"] == [{"version": "2", "digest": digest_of("2"), "workers": 3}]
    assert _at(second) > _at(first)
    weights = (await workspace.weights())["status"]
    assert weights["applied"]["appliedAt"] == second["applied"]["appliedAt"]
    # The one before it stays: a rollback would read it. Earlier ones may go.
    await workspace.publish("3")
    await workspace.applied("3")
    assert _paths(await _status(workspace)) == {
        "/weights/base",
        "/weights/step_2",
        "/weights/step_3",
    }


@pytest.mark.usefixtures("shared_operator")
async def test_the_columns_answer_without_a_describe(workspace: Workspace) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)

    fleet = await _table(workspace, "ifl")
    weights = await _table(workspace, "wv")

    assert (fleet["READY"], fleet["REPLICAS"], fleet["AVAILABLE"]) == ("True", "2", "2")
    assert fleet["ENDPOINT"] == f"http://{FLEET}.{workspace.namespace}.svc:8000"
    assert (weights["READY"], weights["APPLIED"], weights["WORKERS"]) == ("True", "1", "2/2")
    assert float(weights["PAUSE(S)"]) >= 0
    for table in (fleet, weights):
        assert table["APPLIED FOR"].endswith("s")  # an age: how long it has been applied


async def test_the_api_server_refuses_a_status_that_was_decided_on_an_older_fleet(
    workspace: Workspace,
) -> None:
    """As a leader sends it that was frozen before its write, while another one led."""
    await workspace.make_fleet(replicas=1, version="1")
    metadata = (await workspace.fleet())["metadata"]
    async with _client_of(workspace) as client:
        statuses = _statuses(client, workspace)

        async def write(observed: int, version: str) -> str:
            status = FleetStatus(observed_generation=observed)
            uid = metadata["uid"]
            return (await statuses.put(names.FLEET_KIND, FLEET, uid, status, version)).version

        later = await write(1, metadata["resourceVersion"])
        with pytest.raises(Conflict):
            await write(0, metadata["resourceVersion"])
        assert (await _status(workspace))["observedGeneration"] == 1

        await write(2, later)
    assert (await _status(workspace))["observedGeneration"] == 2


async def test_a_leader_keeps_what_a_former_one_has_stored_since_it_read_the_fleet(
    workspace: Workspace,
) -> None:
    """The former leader was frozen before its write, and writes first. No watch brings it in time."""
    await workspace.make_fleet(replicas=1, version="1")
    metadata = (await workspace.fleet())["metadata"]
    read = FleetRecord(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=1,
        deleting=False,
        spec=None,
        status=FleetStatus(),
    )
    recorded = FleetStatus(
        applied=AppliedWeights(version="2", source=WeightSource(path="/weights/step_2")),
        applied_version="2",
        pinned=(pin("2", "/weights/step_2", f"sha256:{'2' * 64}"),),
    )
    async with _client_of(workspace) as client:
        former, leader = (_statuses(client, workspace) for _ in range(2))
        before = leader.fleet(read)
        former.take_fleet(read.uid, former.fleet(read), recorded)
        await former.write(read.uid)
        leader.take_fleet(read.uid, before, FleetStatus(replicas=1))
        with pytest.raises(Conflict):
            await leader.write(read.uid)
        await leader.write(read.uid)

    status = await _status(workspace)
    assert (status["appliedVersion"], status["applied"]["version"]) == ("2", "2")
    assert [each["version"] for each in status["pinned"]] == ["2"]
    assert status["replicas"] == 1


@pytest.mark.usefixtures("shared_operator")
async def test_a_running_operator_keeps_the_pins_of_another_process_and_not_those_of_kubectl(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.applied("1", replicas=1)
    pins = (await _status(workspace))["pinned"]
    of_kubectl, of_operator = (
        {"version": v, "digest": f"sha256:{v * 64}", "source": {"path": f"/weights/step_{v}"}}
        for v in "89"
    )
    edit = json.dumps({"status": {"pinned": [of_kubectl, *pins]}})
    await workspace.kubectl(
        *("patch", "inferencefleet", FLEET, "--subresource=status", "--type=merge", "-p", edit)
    )
    await workspace.publish("2")
    await workspace.applied("2", replicas=1)
    fleet = await workspace.fleet()
    assert [each["version"] for each in fleet["status"]["pinned"]] == ["2", "1", "base"]

    async with _client_of(workspace) as client:
        pins = [of_operator, *fleet["status"]["pinned"]]
        status = FleetStatus.read({**fleet["status"], "pinned": pins})
        uid = fleet["metadata"]["uid"]
        await _statuses(client, workspace).put(names.FLEET_KIND, FLEET, uid, status)
    await workspace.publish("3")
    await workspace.applied("3", replicas=1)
    pinned = (await _status(workspace))["pinned"]
    assert [each["version"] for each in pinned] == ["3", "9", "2", "1", "base"]


def _statuses(client: KubeClient, workspace: Workspace) -> StatusWriter:
    """The statuses of the fleet in an operator process."""
    return make_sessions(client).of((workspace.namespace, FLEET)).statuses


@asynccontextmanager
async def _client_of(workspace: Workspace) -> AsyncIterator[KubeClient]:
    configuration = Configuration()
    await config.load_kube_config(
        str(workspace.cluster.kubeconfig), client_configuration=configuration
    )
    client = KubeClient(configuration)
    try:
        yield client
    finally:
        await client.close()


async def _status(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = (await workspace.fleet()).get("status", {})
    return found


async def _differing(workspace: Workspace) -> dict[str, Any] | None:
    status = await _status(workspace)
    return status if len(status.get("versions", ())) == 2 else None


def _paths(status: dict[str, Any]) -> set[str]:
    return {s["source"]["path"] for s in status["sourcesInUse"]}


def _at(status: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(status["applied"]["appliedAt"])


async def _table(workspace: Workspace, kind: str) -> dict[str, str]:
    """The columns of `kubectl get -o wide` for one object, by heading."""
    heading, row = (await workspace.kubectl("get", kind, FLEET, "-o", "wide")).splitlines()
    columns = list(re.finditer(r"\S+(?: \S+)*", heading))
    ends = [*(c.start() for c in columns[1:]), len(row)]
    return {c[0]: row[c.start() : end].strip() for c, end in zip(columns, ends, strict=True)}


async def test_what_a_newer_release_has_written_stays_after_a_rollback_of_the_operator(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    await operator.stop()
    fleet, weights = await workspace.fleet(), await workspace.weights()
    pin = {"version": "8", "digest": f"blake3:{8:064x}", "source": {"s3": {"uri": "s3://b/8"}}}
    entry = {"version": "0", "result": "Skipped", "startedAt": NEWER["since"], "skippedFor": "2"}
    newer: dict[str, Json] = {
        "inferencefleets": {"pinned": [pin, *fleet["status"]["pinned"]], "newer": NEWER},
        "weightversions": {"history": [*weights["status"]["history"], entry], "newer": NEWER},
    }
    for plural, found in (("inferencefleets", fleet), ("weightversions", weights)):
        body = {k: found[k] for k in ("apiVersion", "kind")} | {"metadata": {"name": FLEET}}
        status = found["status"] | newer[plural]
        path = f"{workspace.path(plural)}/status"
        await workspace.admin.apply(
            path, body | {"status": status}, manager=names.FIELD_MANAGER, force=True
        )

    await workspace.start_operator()
    await workspace.publish("8")

    async def is_refused() -> bool:
        stalled = await workspace.condition("Stalled")
        return stalled is not None and stalled["reason"] == "PinUnreadable"

    await workspace.until(is_refused, "the version of the unreadable pin is refused")
    assert workspace.serving == ["1", "1"]
    await workspace.publish("9")
    await workspace.until(lambda: _serves(workspace, "9"), "both workers serve another version")

    async def is_whole() -> bool:
        fleet, weights = await workspace.fleet(), await workspace.weights()
        return (
            pin in fleet["status"]["pinned"]
            and entry in weights["status"]["history"]
            and fleet["status"]["newer"] == weights["status"]["newer"] == NEWER
            and {p["version"] for p in fleet["status"]["pinned"]} >= {"8", "9", "1"}
        )

    await workspace.until(is_whole, "all of it is still there")


async def _serves(workspace: Workspace, version: str) -> bool:
    return workspace.serving == [version, version]
