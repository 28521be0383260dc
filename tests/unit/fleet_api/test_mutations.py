"""Requests that change the WeightVersion: their patches, outcomes, keys and audit lines."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from tests.support.fake_cluster import READER, TRAINER
from tests.support.fake_objects import TIMINGS, condition
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import Api

from rlfleet.errors import Refused
from rlfleet_resources.names import ANNOTATION_TRACEPARENT

WEIGHTS = "/v1/rl/weights"
CHANGES = [
    ("PUT", WEIGHTS, {"version": "43"}),
    ("POST", "/v1/rl/rollback", {"version": "41"}),
    ("POST", "/v1/rl/undo", {}),
    ("POST", "/v1/rl/retry", {}),
    ("POST", "/v1/rl/suspend", {}),
    ("POST", "/v1/rl/resume", {}),
]


async def publish(api: Api, version: str = "43", key: str = "", **body: Any) -> tuple[int, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    given = {"version": version} | body
    return await api.send("PUT", WEIGHTS, TRAINER, json=given, headers=headers)


async def change(api: Api, what: str, key: str = "", **body: Any) -> tuple[int, Any]:
    """`what`: the last part of the path, such as `rollback`."""
    headers = {"Idempotency-Key": key} if key else {}
    return await api.send("POST", f"/v1/rl/{what}", TRAINER, json=body, headers=headers)


def second_trainer(api: Api) -> None:
    """An account with the token `second`."""
    api.cluster.users["second"] = api.cluster.users[TRAINER] | {"username": "second"}
    api.cluster.rights["second"] = api.cluster.rights["system:serviceaccount:rl:trainer"]


def patches(api: Api) -> list[Any]:
    return [b for request, b in api.cluster.objects.requests if request.startswith("patch")]


def stall(api: Api, reason: str) -> None:
    """The operator will report this instead of applying the version."""
    api.cluster.objects._obeys = False
    api.cluster.objects.script.append(lambda: api.cluster.objects.stall(reason))


# --- rights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_right_to_read_changes_nothing(api, method, path, body):
    status, problem = await api.send(method, path, READER, json=body)

    assert (status, problem["reason"]) == (403, "Forbidden")
    assert "may not patch weightversions 'policy'" in problem["detail"]
    assert patches(api) == []


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_fleet_without_a_weight_version_has_nothing_to_change(api, method, path, body):
    api.cluster.objects.delete()
    assert (await api.send(method, path, TRAINER, json=body))[0] == 404

    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    status, problem = await api.send(method, path, TRAINER, json=body)
    assert (status, problem["reason"]) == (409, "ExternallyManaged")


# --- outcomes -------------------------------------------------------------------------------------


async def test_a_version_that_is_applied_is_200_with_its_timings(api):
    status, rollout = await publish(api, source={"path": "/weights/step_43"}, runID="run-7")

    assert (status, rollout["version"], rollout["applied"]) == (200, "43", True)
    assert (rollout["runID"], rollout["timings"]) == ("run-7", TIMINGS)
    assert patches(api) == [
        {
            "metadata": {"annotations": {ANNOTATION_TRACEPARENT: None}},
            "spec": {
                "version": "43",
                "runID": "run-7",
                "digest": None,
                "source": {"path": "/weights/step_{version}", "uri": None, "huggingFace": None},
            },
        }
    ]


async def test_a_version_begins_in_the_trace_of_its_body(api):
    span = f"00-{'a' * 32}-{'b' * 16}-01"

    assert (await publish(api, traceparent=span))[0] == 200
    status, problem = await publish(api, "44", traceparent="no span")

    assert [body["metadata"]["annotations"] for body in patches(api)] == [
        {ANNOTATION_TRACEPARENT: span}
    ]
    assert (status, problem["reason"]) == (422, "InvalidBody")


async def test_without_waiting_the_version_is_202(api):
    status, rollout = await publish(api, wait=False)

    assert (status, rollout["applied"]) == (202, False)
    assert rollout["weights"]["desired"]["version"] == "43"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("CheckpointTruncated", 422),
        ("SourceOutsideRoots", 422),
        ("DigestMismatch", 422),
        ("DigestRequired", 422),
        ("CanaryRefused", 422),
        ("RewindRefused", 409),
        ("FailureBudgetExceeded", 409),
        ("DeadlineExceeded", 409),
    ],
)
async def test_a_rollout_that_stalls_is_answered_at_once_with_its_reason(api, reason, status):
    stall(api, reason)
    before = api.cluster.objects.now
    answered, problem = await publish(api, timeoutSeconds=600)

    assert (answered, problem["reason"]) == (status, reason)
    assert problem["detail"] == f"because of {reason}"
    assert api.cluster.objects.now == before


async def test_a_spec_that_the_api_server_refuses_is_422(api):
    async def refuse(*_: Any) -> Any:
        raise Refused("43", "Invalid", "spec.source.path: must not contain ..")

    api.cluster.objects.patch = refuse
    status, problem = await publish(api)
    assert (status, problem["reason"]) == (422, "Invalid")


def only_growing(api: Api) -> None:
    """The API server refuses every patch, as it does a version that is lower within its run."""

    async def refuse(*_: Any) -> Any:
        raise Refused("1", "Invalid", "spec.version: within one spec.runID, or without one, …")

    api.cluster.objects.patch = refuse


@pytest.mark.parametrize(
    ("version", "run", "desired_run"),
    [("41", None, None), ("step_1", None, "run-7"), ("1", "run-7", "run-7")],
)
@pytest.mark.parametrize("key", ["", "a-key"])
async def test_a_version_that_goes_back_within_its_run_is_409_with_both_ways_out(
    api, version, run, desired_run, key
):
    api.cluster.objects.desire(version="42", runID=desired_run)
    only_growing(api)

    status, problem = await publish(api, version, key, **({"runID": run} if run else {}))

    assert (status, problem["reason"]) == (409, "RewindRefused")
    assert f"rlfleet rollback {version}" in problem["detail"]
    assert "runID" in problem["detail"]


@pytest.mark.parametrize(("version", "run"), [("1", "run-8"), ("43", None), ("latest", None)])
async def test_another_refusal_of_the_api_server_is_not_a_step_back(api, version, run):
    only_growing(api)

    status, problem = await publish(api, version, **({"runID": run} if run else {}))

    assert (status, problem["reason"]) == (422, "Invalid")


async def test_a_version_that_another_writer_replaces_is_409(api):
    api.cluster.objects._obeys = False
    api.cluster.objects.script.append(lambda: api.cluster.objects.desire(version="44"))

    status, problem = await publish(api)
    assert (status, problem["reason"]) == (409, "Superseded")
    assert "replaced by 44" in problem["detail"]


async def test_a_rollout_that_outlives_the_wait_is_504_so_that_clients_wait_again(api):
    api.cluster.objects._obeys = False
    status, problem = await publish(api, timeoutSeconds=5)

    assert (status, problem["reason"]) == (504, "NotYetApplied")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_a_rollback_permits_itself_and_finds_the_files(api):
    status, rollout = await change(api, "rollback", version="41")

    assert (status, rollout["version"], rollout["applied"]) == (200, "41", True)
    assert patches(api)[-1]["spec"]["rollbackTo"] == "41"


@pytest.mark.parametrize("version", ["43", "41"])
async def test_a_label_never_names_the_files_of_another_one_by_itself(api, version):
    api.cluster.objects.desire(source={"path": "/weights/step_42"})

    status, problem = await publish(api, version)

    assert (status, problem["reason"]) == (422, "SourceFixed")
    assert patches(api) == []
    assert (await publish(api, sameFiles=True))[0] == 200
    assert (await publish(api, "44", source={"path": "/weights/step_44"}))[0] == 200


async def test_a_version_that_the_fleet_never_had_is_404_with_those_that_it_had(api):
    status, problem = await change(api, "rollback", version="99")

    assert (status, problem["reason"]) == (404, "NotFound")
    assert "it has: 42, 41" in problem["detail"]
    assert patches(api) == []


async def test_an_undo_takes_the_last_version_back_once(api):
    """With a key, also if it is sent again after another version has come."""
    back = partial(change, api, "undo", "back")

    assert [(await back())[1]["version"] for _ in range(2)] == ["41", "41"]
    assert patches(api)[0]["spec"]["rollbackTo"] == "41"
    await publish(api, "43")
    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")


@pytest.mark.parametrize("key", ["", "sent-twice"])
@pytest.mark.parametrize("reason", ["WaitingForCheckpoint", "NoWorkers", "Suspended"])
async def test_a_version_that_cannot_begin_is_409_and_stays_desired(api, reason, key):
    objects = api.cluster.objects
    objects._obeys = False

    def report() -> None:
        generation = objects.weights["metadata"]["generation"]
        objects.look("Pending", condition("Ready", reason, generation, status="False"))

    objects.script.append(report)

    for _ in range(2 if key else 1):
        status, problem = await publish(api, key=key)
        assert (status, problem["reason"]) == (409, reason)
        assert "stays desired" in problem["detail"]
    assert objects.weights["spec"]["version"] == "43"
    if reason == "WaitingForCheckpoint":
        assert (await publish(api, waitForFiles=True))[0] == 504


async def test_a_version_that_changed_nothing_says_so(api):
    same = condition("WeightsUnchanged", "SameFiles", 2, message="42 has the same digest")
    objects = api.cluster.objects
    objects._obeys = False
    objects.script.append(lambda: objects.apply(conditions=[same]))

    assert (await publish(api))[1]["unchanged"] == "42 has the same digest"


async def test_suspend_and_resume_show_the_weights(api):
    assert (await change(api, "suspend"))[1]["suspended"] is True
    assert (await change(api, "resume"))[1]["suspended"] is False


async def test_a_retry_waits_for_its_own_outcome(api):
    status, rollout = await change(api, "retry")

    assert (status, rollout["applied"]) == (200, True)
    assert "rlfleet.dev/retry" in patches(api)[0]["metadata"]["annotations"]


async def test_a_replica_that_ends_answers_its_waiting_requests(api, lifecycle):
    waits = asyncio.Event()

    async def hang(*_: Any) -> Any:
        waits.set()
        await asyncio.Event().wait()

    api.cluster.objects.patch = hang
    request = asyncio.ensure_future(publish(api))
    await asyncio.wait_for(waits.wait(), 10)
    lifecycle.ending.set()

    status, problem = await asyncio.wait_for(request, 10)
    assert (status, problem["reason"]) == (503, "Stopping")


@pytest.mark.parametrize(
    "flags",
    [["--concurrent-requests=2", "--concurrent-proxied-requests=1", "--concurrent-waits=4"]],
)
async def test_a_namespace_that_waits_leaves_slots_to_others(api):
    waiting, hangs = 0, asyncio.Event()

    async def watch(*_: Any) -> Any:
        nonlocal waiting
        waiting += 1
        await hangs.wait()
        yield None

    api.cluster.objects._obeys = False
    api.cluster.objects.watch = watch
    other = api.cluster.add_tenant("other", "third")
    second_trainer(api)
    other._obeys, other.watch = False, watch
    body = {"version": "43", "timeoutSeconds": 3600}
    requests = [
        asyncio.ensure_future(api.send("PUT", WEIGHTS, token, json=body))
        for token in (TRAINER, "second")
    ]
    try:
        await soon(lambda: waiting == 2)
        made = len(patches(api))
        for _ in range(8):
            status, problem = await publish(api, "44", timeoutSeconds=3600)
            assert (status, problem["reason"]) == (503, "NamespaceOverloaded")
            assert "--concurrent-waits" in problem["detail"]
        assert len(patches(api)) == made, "a request without a place changes nothing"
        assert (await publish(api, wait=False))[0] == 202
        assert (await api.get("/v1/rl/state"))[0] == 200
        sent = api.send("PUT", f"//fleets/other/policy{WEIGHTS}", "third", json=body)
        requests.append(asyncio.ensure_future(sent))
        await soon(lambda: waiting == 3)
        assert (await api.get("/v1/rl/state"))[0] == 200, (
            "requests that wait do not count as arriving"
        )
    finally:
        for request in requests:
            request.cancel()
        await asyncio.wait(requests)
        hangs.set()


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 100_0, 400),
        (b"[]", 422),
        (b"{}", 422),
        (b"", 422),
        (b'{"version": 43}', 422),
        (b'{"version": ""}', 422),
        (b'{"version": "a/b"}', 422),
        (b'{"version": "43", "colour": "red"}', 422),
        (b'{"version": "43", "wait": "yes"}', 422),
        (b'{"version": "43", "timeoutSeconds": -1}', 422),
        (b'{"version": "43", "timeoutSeconds": NaN}', 422),
        (b'{"version": "43", "timeoutSeconds": 1e9}', 422),
        (b'{"version": "43", "source": {"path": "relative"}}', 422),
        (b'{"version": "43", "source": "/weights"}', 422),
        (b'{"version": "43", "digest": "md5:0"}', 422),
        (b"x" * 70_000, 413),
    ],
)
async def test_a_body_that_cannot_be_used_changes_nothing(api, content, status):
    answered, problem = await api.send("PUT", WEIGHTS, TRAINER, data=content)

    assert (answered, problem["status"]) == (status, status), problem
    assert patches(api) == []


# --- audit ----------------------------------------------------------------------------------------


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "audit"]


async def test_each_change_writes_one_line_with_the_account_and_the_result(api, caplog):
    caplog.set_level(logging.INFO)
    await publish(api, source={"path": "/weights/step_43"})
    await api.send("PUT", WEIGHTS, READER, json={"version": "44"})
    await api.send("PUT", WEIGHTS, None, json={"version": "44"})
    await api.get("/v1/rl/state")
    done, denied, unknown = audited(caplog)

    assert done["caller"] == "system:serviceaccount:rl:trainer"
    assert (done["namespace"], done["fleet"], done["status"]) == ("rl", "policy", 200)
    assert done["asked"] == {"version": "43", "source": {"path": "/weights/step_43"}}
    assert (denied["status"], denied["reason"]) == (403, "Forbidden")
    assert (unknown["caller"], unknown["status"]) == ("", 401)


async def test_a_reply_names_its_audit_line(api, caplog):
    caplog.set_level(logging.INFO)
    async with api.http.post(
        "/fleets/rl/policy/v1/rl/suspend", headers={"Authorization": f"Bearer {TRAINER}"}
    ) as reply:
        assert reply.headers["x-request-id"] == audited(caplog)[0]["request_id"]
