"""The documents that change nothing: state, and discovery as Dynamo's clients read it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_cluster import pod
from tests.unit.fleet_api.conftest import Api

from fleet_worker.protocol import ENGINE_ROUTES, READING_ENGINE_ROUTES

NATIVE = {
    "control/pause_generation",
    "control/resume_generation",
    "control/is_paused",
    "control/get_weight_version",
    "update/update_weight_version",
}
"""The routes without which prime-rl's pool of native routes refuses a worker."""


async def workers(api: Api) -> list[dict[str, Any]]:
    status, document = await api.get("/v1/rl/workers")
    assert status == 200
    assert (document["protocol_version"], document["namespace"]) == (1, "rl")
    rows: list[dict[str, Any]] = document["workers"]
    return rows


# --- state ----------------------------------------------------------------------------------------


async def test_the_state_has_the_fleet_and_its_weights(api):
    status, state = await api.get("/v1/rl/state")

    assert status == 200
    assert (state["fleet"], state["model"], state["management"]) == ("policy", "qwen", "Operator")
    assert (state["replicas"], state["workers"]["serving"], state["observed"]) == (2, 2, True)
    assert state["weights"]["name"] == "policy"
    assert state["weights"]["desired"]["version"] == "42"
    assert (state["weights"]["phase"], state["weights"]["appliedVersion"]) == ("Applied", "42")
    assert [entry["version"] for entry in state["weights"]["history"]] == ["42", "41"]


async def test_a_state_of_an_older_generation_says_so(api):
    api.cluster.fleet["metadata"]["generation"] = 2
    api.cluster.objects.desire(version="43")
    _, state = await api.get("/v1/rl/state")

    assert (state["observed"], state["weights"]["observed"]) == (False, False)
    assert state["weights"]["desired"]["version"] == "43"


async def test_a_fleet_without_a_weight_version_has_a_state(api):
    api.cluster.objects.delete()

    status, state = await api.get("/v1/rl/state")
    assert (status, state["weights"]) == (200, None)


@pytest.mark.parametrize("changed", [{"fleetRef": {"name": "other"}}, {"adapter": "chat"}])
async def test_weights_of_another_fleet_and_of_adapters_are_not_the_fleets(api, changed):
    api.cluster.objects.desire(**changed)

    assert (await api.get("/v1/rl/state"))[1]["weights"] is None


async def test_a_fleet_that_does_not_exist_is_404_for_a_caller_that_may_see_it(api):
    api.cluster.objects.fleet = None

    status, problem = await api.get("/v1/rl/state")
    assert (status, problem["reason"]) == (404, "NotFound")


async def test_a_fleet_that_cannot_be_read_is_not_a_defect(api):
    api.cluster.fleet["spec"]["replicas"] = "many"

    status, problem = await api.get("/v1/rl/state")
    assert (status, problem["reason"]) == (502, "UnreadableFleet")


# --- workers --------------------------------------------------------------------------------------


async def test_a_row_has_what_both_kinds_of_dynamo_clients_read(api):
    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    first, second = await workers(api)

    assert first["namespace"] == "rl"
    assert first["component"] == "policy"
    assert [first["instance_id"], second["instance_id"]] == [0, 1]
    assert first["system_url"] == first["admin_base_url"] == "http://10.0.0.1:8081"
    assert first["request_plane_url"] == "http://10.0.0.1:8000"
    assert (first["model"], first["world_size"]) == ("qwen", 4)
    assert set(first["routes"]) == ENGINE_ROUTES > NATIVE
    assert first["routes"] == sorted(first["routes"])
    assert (first["weight_version"], first["weight_digest"]) == ("42", "sha256:" + "4" * 64)
    assert first["ready"] is True
    assert "error" not in first


@pytest.mark.parametrize("flags", [["--external-fleets=rl/policy"]])
async def test_workers_that_the_rl_api_calls_have_addresses_as_the_client_reaches_it(api):
    headers = {"Host": "rl.example.com", "X-Forwarded-Proto": "https"}
    _, page = await api.get("/v1/rl/workers", headers=headers)
    assert page["workers"][0]["system_url"] == "http://10.0.0.1:8081", "the operator manages it"

    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    _, page = await api.get("/v1/rl/workers", headers=headers)
    root = "https://rl.example.com/fleets/rl/policy/workers"
    for row in page["workers"]:
        assert row["system_url"] == row["admin_base_url"] == f"{root}/{row['pod']}"


async def test_integers_are_integers_for_clients_that_check(api):
    for row in await workers(api):
        assert type(row["instance_id"]) is int
        assert type(row["world_size"]) is int


async def test_a_fleet_of_the_operator_shows_only_routes_that_read(api):
    for row in await workers(api):
        assert set(row["routes"]) == READING_ENGINE_ROUTES


async def test_two_reads_have_the_same_order(api):
    api.cluster.pods = [pod(ordinal) for ordinal in (10, 2, 0, 1)]
    first = await workers(api)
    api.cluster.pods.reverse()

    assert await workers(api) == first
    assert [row["instance_id"] for row in first] == [0, 1, 2, 10]


async def test_a_pod_that_only_has_the_labels_of_the_fleet_is_not_shown(api):
    api.cluster.pods.append(pod(2, owner="uid-of-another-fleet"))
    unowned = pod(3)
    del unowned["metadata"]["ownerReferences"]
    api.cluster.pods.append(unowned)

    assert [row["pod"] for row in await workers(api)] == ["policy-0", "policy-1"]


@pytest.mark.parametrize(
    ("changed", "has_address"),
    [
        ({"podIP": None, "phase": "Pending"}, False),
        ({"containerStatuses": [{"name": "worker", "started": False}]}, True),
        ({"containerStatuses": [{"name": "sidecar", "started": True}]}, True),
        ({"containerStatuses": None}, True),
    ],
)
async def test_a_worker_that_cannot_be_driven_yet_has_an_error_and_no_routes(
    api, changed, has_address
):
    api.cluster.pods = [pod(0, **changed)]
    (row,) = await workers(api)

    assert row["error"]
    assert (row["routes"], row["ready"]) == ([], False)
    assert ("system_url" in row) is has_address


async def test_a_worker_that_is_deleted_has_an_error(api):
    api.cluster.pods[0]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"

    assert [("error" in row) for row in await workers(api)] == [False, True]


async def test_an_address_of_ipv6_is_a_valid_url(api):
    api.cluster.pods = [pod(0, podIP="fd00::1")]
    (row,) = await workers(api)

    assert row["system_url"] == "http://[fd00::1]:8081"


async def test_during_a_rollout_only_a_worker_that_the_status_names_has_a_version(api):
    # A worker that takes part in the rollout is in no list, whichever of the two versions it has.
    api.cluster.fleet["status"] |= {
        "desiredVersion": "43",
        "versions": [{"version": "42", "workers": 1}, {"version": "43", "workers": 1}],
        "laggards": [
            {"pod": "policy-1", "version": "42", "state": "broken", "reason": "Quarantined"}
        ],
    }
    first, second = await workers(api)

    assert not {"weight_version", "weight_run_id", "weight_digest", "lagging"} & set(first)
    assert (second["weight_version"], second["lagging"]) == ("42", "Quarantined")


async def test_a_lagging_worker_gets_no_run_and_digest_of_the_others(api):
    served = {"version": "42", "runID": "run-8", "digest": "sha256:" + "8" * 64, "workers": 1}
    api.cluster.fleet["status"] |= {
        "versions": [served],
        "laggards": [{"pod": "policy-1", "version": "42", "state": "joining", "reason": "Joining"}],
    }
    first, second = await workers(api)

    assert (first["weight_version"], first["weight_run_id"]) == ("42", "run-8")
    assert second["weight_version"] == "42"
    assert not {"weight_run_id", "weight_digest"} & set(second)


@pytest.mark.parametrize(
    "changed",
    [
        {"containerStatuses": [{"name": "worker", "started": False}]},
        {"conditions": [{"type": "Ready", "status": "False"}]},
    ],
)
async def test_a_worker_that_is_not_ready_gets_no_version_of_the_others(api, changed):
    api.cluster.pods = [pod(0, **changed), pod(1)]

    assert [row.get("weight_version") for row in await workers(api)] == [None, "42"]
