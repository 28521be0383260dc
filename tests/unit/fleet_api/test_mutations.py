"""Requests that change the WeightVersion: their patches, outcomes, keys and audit lines."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any

import pytest
from tests.support.fake_cluster import READER, TRAINER
from tests.support.fake_objects import TIMINGS, condition
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import Api

from fleet_api.idempotency import ANNOTATION, MAX_CONFLICTS, MAX_KEYS
from fleet_api.lifecycle import Lifecycle
from rlfleet.errors import Refused
from rlfleet.ports import Kind
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
async def test_a_right_to_read_changes_nothing(api: Api, method: str, path: str, body: Any) -> None:
    status, problem = await api.send(method, path, READER, json=body)

    assert (status, problem["reason"]) == (403, "Forbidden")
    assert "may not patch weightversions 'policy'" in problem["detail"]
    assert patches(api) == []


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_fleet_without_a_weight_version_has_nothing_to_change(
    api: Api, method: str, path: str, body: Any
) -> None:
    api.cluster.objects.delete()
    assert (await api.send(method, path, TRAINER, json=body))[0] == 404

    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    status, problem = await api.send(method, path, TRAINER, json=body)
    assert (status, problem["reason"]) == (409, "ExternallyManaged")


# --- outcomes -------------------------------------------------------------------------------------


async def test_a_version_that_is_applied_is_200_with_its_timings(api: Api) -> None:
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


async def test_a_version_begins_in_the_trace_of_its_body(api: Api) -> None:
    span = f"00-{'a' * 32}-{'b' * 16}-01"

    assert (await publish(api, traceparent=span))[0] == 200
    status, problem = await publish(api, "44", traceparent="no span")

    assert [body["metadata"]["annotations"] for body in patches(api)] == [
        {ANNOTATION_TRACEPARENT: span}
    ]
    assert (status, problem["reason"]) == (422, "InvalidBody")


async def test_without_waiting_the_version_is_202(api: Api) -> None:
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
async def test_a_rollout_that_stalls_is_answered_at_once_with_its_reason(
    api: Api, reason: str, status: int
) -> None:
    stall(api, reason)
    before = api.cluster.objects.now
    answered, problem = await publish(api, timeoutSeconds=600)

    assert (answered, problem["reason"]) == (status, reason)
    assert problem["detail"] == f"because of {reason}"
    assert api.cluster.objects.now == before


async def test_a_spec_that_the_api_server_refuses_is_422(api: Api) -> None:
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
    api: Api, version: str, run: str | None, desired_run: str | None, key: str
) -> None:
    api.cluster.objects.desire(version="42", runID=desired_run)
    only_growing(api)

    status, problem = await publish(api, version, key, **({"runID": run} if run else {}))

    assert (status, problem["reason"]) == (409, "RewindRefused")
    assert f"rlfleet rollback {version}" in problem["detail"]
    assert "runID" in problem["detail"]


@pytest.mark.parametrize(("version", "run"), [("1", "run-8"), ("43", None), ("latest", None)])
async def test_another_refusal_of_the_api_server_is_not_a_step_back(
    api: Api, version: str, run: str | None
) -> None:
    only_growing(api)

    status, problem = await publish(api, version, **({"runID": run} if run else {}))

    assert (status, problem["reason"]) == (422, "Invalid")


async def test_a_version_that_another_writer_replaces_is_409(api: Api) -> None:
    api.cluster.objects._obeys = False
    api.cluster.objects.script.append(lambda: api.cluster.objects.desire(version="44"))

    status, problem = await publish(api)
    assert (status, problem["reason"]) == (409, "Superseded")
    assert "replaced by 44" in problem["detail"]


async def test_a_rollout_that_outlives_the_wait_is_504_so_that_clients_wait_again(
    api: Api,
) -> None:
    api.cluster.objects._obeys = False
    status, problem = await publish(api, timeoutSeconds=5)

    assert (status, problem["reason"]) == (504, "NotYetApplied")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_a_rollback_permits_itself_and_finds_the_files(api: Api) -> None:
    status, rollout = await change(api, "rollback", version="41")

    assert (status, rollout["version"], rollout["applied"]) == (200, "41", True)
    assert patches(api)[-1]["spec"]["rollbackTo"] == "41"


@pytest.mark.parametrize("version", ["43", "41"])
async def test_a_label_never_names_the_files_of_another_one_by_itself(
    api: Api, version: str
) -> None:
    api.cluster.objects.desire(source={"path": "/weights/step_42"})

    status, problem = await publish(api, version)

    assert (status, problem["reason"]) == (422, "SourceFixed")
    assert patches(api) == []
    assert (await publish(api, sameFiles=True))[0] == 200
    assert (await publish(api, "44", source={"path": "/weights/step_44"}))[0] == 200


async def test_a_version_that_the_fleet_never_had_is_404_with_those_that_it_had(api: Api) -> None:
    status, problem = await change(api, "rollback", version="99")

    assert (status, problem["reason"]) == (404, "NotFound")
    assert "it has: 42, 41" in problem["detail"]
    assert patches(api) == []


async def test_an_undo_takes_the_last_version_back_once(api: Api) -> None:
    """With a key, also if it is sent again after another version has come."""
    back = partial(change, api, "undo", "back")

    assert [(await back())[1]["version"] for _ in range(2)] == ["41", "41"]
    assert patches(api)[0]["spec"]["rollbackTo"] == "41"
    await publish(api, "43")
    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")


@pytest.mark.parametrize("key", ["", "sent-twice"])
@pytest.mark.parametrize("reason", ["WaitingForCheckpoint", "NoWorkers", "Suspended"])
async def test_a_version_that_cannot_begin_is_409_and_stays_desired(
    api: Api, reason: str, key: str
) -> None:
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


async def test_a_version_that_changed_nothing_says_so(api: Api) -> None:
    same = condition("WeightsUnchanged", "SameFiles", 2, message="42 has the same digest")
    objects = api.cluster.objects
    objects._obeys = False
    objects.script.append(lambda: objects.apply(conditions=[same]))

    assert (await publish(api))[1]["unchanged"] == "42 has the same digest"


async def test_suspend_and_resume_show_the_weights(api: Api) -> None:
    assert (await change(api, "suspend"))[1]["suspended"] is True
    assert (await change(api, "resume"))[1]["suspended"] is False


async def test_a_retry_waits_for_its_own_outcome(api: Api) -> None:
    status, rollout = await change(api, "retry")

    assert (status, rollout["applied"]) == (200, True)
    assert "rlfleet.dev/retry" in patches(api)[0]["metadata"]["annotations"]


async def test_a_replica_that_ends_answers_its_waiting_requests(
    api: Api, lifecycle: Lifecycle
) -> None:
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
async def test_a_namespace_that_waits_leaves_slots_to_others(api: Api) -> None:
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
async def test_a_body_that_cannot_be_used_changes_nothing(
    api: Api, content: bytes, status: int
) -> None:
    answered, problem = await api.send("PUT", WEIGHTS, TRAINER, data=content)

    assert (answered, problem["status"]) == (status, status), problem
    assert patches(api) == []


# --- idempotency ----------------------------------------------------------------------------------


async def test_a_request_with_a_known_key_is_answered_and_not_repeated(api: Api) -> None:
    first = await publish(api, key="step-43")
    made = len(patches(api))
    again = await publish(api, key="step-43")

    assert first[0] == again[0] == 200
    assert again[1]["version"] == "43"
    assert len(patches(api)) == made == 1


async def test_only_a_new_request_for_an_applied_version_makes_the_operator_look_again(
    api: Api,
) -> None:
    await publish(api, key="step-43")
    assert "rlfleet.dev/retry" not in api.cluster.objects.weights["metadata"]["annotations"]
    await publish(api, key="step-43")
    assert "rlfleet.dev/retry" not in api.cluster.objects.weights["metadata"]["annotations"]

    assert (await publish(api, key="step-43-rewritten"))[0] == 200
    weights = api.cluster.objects.weights
    mark = weights["metadata"]["annotations"]["rlfleet.dev/retry"]
    assert weights["status"]["retried"] == mark


async def test_a_retry_with_a_known_key_tries_once(api: Api) -> None:
    assert [(await change(api, "retry", "once"))[0] for _ in range(2)] == [200, 200]
    assert len(patches(api)) == 1


async def test_a_repetition_is_not_answered_with_a_version_that_came_after_it(api: Api) -> None:
    objects = api.cluster.objects
    objects._obeys = False
    assert (await publish(api, "43", key="step-43"))[0] == 504
    read = objects.get

    async def read_later(kind: Kind, name: str) -> Any:
        if kind is Kind.WEIGHTS:
            objects.desire(version="44")
            objects.apply()
        return await read(kind, name)

    objects.get = read_later
    status, reply = await publish(api, "43", key="step-43")
    assert (status, reply.get("reason")) == (409, "Superseded")


async def test_a_repetition_of_a_retry_ignores_the_refusal_from_before_it(api: Api) -> None:
    objects = api.cluster.objects
    objects._obeys = False
    objects.desire(version="43")
    objects.stall("FailureBudgetExceeded")
    assert (await change(api, "retry", "once"))[0] == 504
    objects.stall("FailureBudgetExceeded")  # as the worker remembers it
    objects.script.extend([lambda: objects.look("Staging"), objects.apply])

    status, rollout = await change(api, "retry", "once")
    assert (status, rollout.get("applied")) == (200, True)


async def test_a_repetition_of_a_retry_is_answered_at_once_with_its_own_refusal(api: Api) -> None:
    objects = api.cluster.objects
    objects._obeys = False
    objects.desire(version="43")
    objects.stall("FailureBudgetExceeded")
    objects.script.extend([lambda: objects.look("Judging"), lambda: objects.stall("CanaryRefused")])
    before = objects.now
    for _ in range(2):  # the first answer may have been lost
        status, problem = await change(api, "retry", "once")
        assert (status, problem["reason"]) == (422, "CanaryRefused")
    assert objects.now == before, "the repetition waited"


async def test_a_late_repetition_does_not_bring_an_old_version_back(api: Api) -> None:
    await publish(api, "43", key="step-43")
    await publish(api, "44", key="step-44")

    status, problem = await publish(api, "43", key="step-43")
    assert (status, problem["reason"]) == (409, "Superseded")
    assert api.cluster.objects.weights["spec"]["version"] == "44"


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ({"runID": "run-7"}, {"runID": "run-8"}, "43 of run run-8 from /weights/step_{version}"),
        (
            {"source": {"path": "/weights/run-7/step_43"}},
            {"source": {"path": "/weights/run-8/step_43"}},
            "43 from /weights/run-8/step_43",
        ),
    ],
)
async def test_a_late_repetition_does_not_take_the_same_number_of_another_run_for_its_own(
    api: Api, first: Any, second: Any, by: str
) -> None:
    for body, key in ((first, "of-run-7"), (second, "of-run-8")):
        assert (await publish(api, key=key, **body))[0] == 200

    status, problem = await publish(api, key="of-run-7", **first)
    assert (status, problem["reason"]) == (409, "Superseded")
    assert f"replaced by {by} " in problem["detail"]


async def test_a_late_repetition_of_a_rollback_that_had_nothing_to_do_does_nothing(
    api: Api,
) -> None:
    back = partial(change, api, "rollback", "back", version="42")
    assert (await back())[0] == 200
    await publish(api, "43", key="step-43")

    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_a_late_repetition_of_a_rollback_does_not_take_another_runs_number_for_its_own(
    api: Api,
) -> None:
    back = partial(change, api, "rollback", "back", version="41")
    assert [(await back())[0] for _ in range(2)] == [200, 200]
    await publish(api, "41", runID="run-8")

    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")
    assert "replaced by 41 of run run-8 " in problem["detail"]


async def test_a_rollback_with_a_key_keeps_run_and_files_together_after_a_conflict(
    api: Api,
) -> None:
    api.cluster.objects.desire(runID="run-7", source={"path": "/run-7/step_{version}"})
    pin = {"version": "41", "runID": "run-7", "digest": f"sha256:{'4' * 64}"}
    pinned = [pin | {"source": {"path": "/run-7/step_41"}}]
    api.cluster.objects.fleet["status"]["pinned"] = pinned
    real = api.cluster.objects.patch

    async def patch(*arguments: Any) -> Any:
        source = {"path": "/run-8/step_{version}"}
        api.cluster.objects.desire(version="44", runID="run-8", source=source)
        return await real(*arguments)

    api.cluster.objects.patch = patch
    status, _ = await change(api, "rollback", "back", version="41", wait=False)

    spec = api.cluster.objects.weights["spec"]
    assert (status, len(patches(api))) == (202, 2)
    assert (spec["version"], spec["runID"]) == ("41", "run-7")
    assert spec["source"] == {"path": "/run-7/step_{version}"}


async def both(api: Api, first: Any, second: Any) -> Any:
    """Two requests, as of two replicas: each has seen the object before either changes it."""
    real, waiting, seen = api.cluster.objects.patch, [], asyncio.Event()

    async def patch(kind: Any, name: str, body: Any) -> Any:
        waiting.append(body)
        if len(waiting) == 2:
            seen.set()
        await asyncio.wait_for(seen.wait(), 10)
        return await real(kind, name, body)

    api.cluster.objects.patch = patch
    results = await asyncio.gather(first, second)
    api.cluster.objects.patch = real
    return results


async def test_keys_that_are_written_at_the_same_time_are_both_remembered(api: Api) -> None:
    results = await both(
        api,
        publish(api, "43", key="step-43", wait=False),
        publish(api, "44", key="step-44", wait=False),
    )
    desired = api.cluster.objects.weights["spec"]["version"]
    older = "43" if desired == "44" else "44"

    assert [status for status, _ in results] == [202, 202]
    status, problem = await publish(api, older, key=f"step-{older}", wait=False)
    assert (status, problem["reason"]) == (409, "Superseded")
    assert api.cluster.objects.weights["spec"]["version"] == desired


async def test_a_request_that_two_replicas_get_at_once_is_carried_out_once(api: Api) -> None:
    retry = partial(change, api, "retry", "one", wait=False)
    results = await both(api, retry(), retry())

    assert [(status, rollout["applied"]) for status, rollout in results] == [(202, False)] * 2
    annotation = api.cluster.objects.weights["metadata"]["annotations"][ANNOTATION]
    assert len(json.loads(annotation)) == 1


async def test_a_status_that_the_operator_writes_does_not_fail_a_request_with_a_key(
    api: Api,
) -> None:
    real = api.cluster.objects.patch

    async def patch(*arguments: Any) -> Any:
        if len(patches(api)) < MAX_CONFLICTS + 3:
            api.cluster.objects.write(workersApplied=f"{len(patches(api))}/99")
        return await real(*arguments)

    api.cluster.objects.patch = patch
    assert (await publish(api, key="step-43"))[0] == 200


async def test_one_key_for_two_requests_is_refused(api: Api) -> None:
    await publish(api, "43", key="same")

    status, problem = await publish(api, "44", key="same")
    assert (status, problem["reason"]) == (422, "IdempotencyKeyReused")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_two_callers_do_not_share_a_key(api: Api) -> None:
    second_trainer(api)
    await publish(api, "43", key="same")

    status, _ = await api.send(
        "PUT", WEIGHTS, "second", json={"version": "44"}, headers={"Idempotency-Key": "same"}
    )
    assert status == 200
    assert api.cluster.objects.weights["spec"]["version"] == "44"


async def test_a_key_is_not_remembered_for_a_change_that_failed(api: Api) -> None:
    real = api.cluster.objects.patch

    async def refuse(*_: Any) -> Any:
        raise Refused("43", "Invalid", "not now")

    api.cluster.objects.patch = refuse
    assert (await publish(api, key="step-43"))[0] == 422
    api.cluster.objects.patch = real
    assert (await publish(api, key="step-43"))[0] == 200
    assert len(patches(api)) == 1


async def test_the_last_keys_are_remembered_and_never_in_clear(api: Api) -> None:
    for version in range(43, 43 + MAX_KEYS + 5):
        await publish(api, str(version), key=f"secret-key-{version}")

    annotation = api.cluster.objects.weights["metadata"]["annotations"][ANNOTATION]
    assert len(json.loads(annotation)) == MAX_KEYS
    assert "secret-key" not in annotation


@pytest.mark.parametrize("broken", ["{", "1", "[1]", '[["a"]]', "[[[["])
async def test_an_annotation_that_cannot_be_read_stops_nothing(api: Api, broken: str) -> None:
    weights = api.cluster.objects.weights
    assert weights is not None
    weights["metadata"]["annotations"] = {ANNOTATION: broken}

    assert (await publish(api, key="step-43"))[0] == 200


@pytest.mark.parametrize("key", [" ", "a b", "k" * 256])
async def test_a_malformed_key_is_400(api: Api, key: str) -> None:
    status, problem = await publish(api, key=key)

    assert (status, problem["reason"]) == (400, "BadRequest")
    assert patches(api) == []


async def test_a_first_patch_that_only_clears_a_rollback_does_not_use_the_key(api: Api) -> None:
    api.cluster.objects.desire(rollbackTo="41")
    await change(api, "rollback", "back", version="41")
    first, second = patches(api)

    assert first["spec"] == {"rollbackTo": None}
    assert "annotations" not in first["metadata"]
    assert ANNOTATION in second["metadata"]["annotations"]


# --- audit ----------------------------------------------------------------------------------------


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "audit"]


async def test_each_change_writes_one_line_with_the_account_and_the_result(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_a_reply_names_its_audit_line(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with api.http.post(
        "/fleets/rl/policy/v1/rl/suspend", headers={"Authorization": f"Bearer {TRAINER}"}
    ) as reply:
        assert reply.headers["x-request-id"] == audited(caplog)[0]["request_id"]
