"""Requests of the RL API that are sent again with their key are carried out once."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from tests.unit.fleet_api.conftest import Api
from tests.unit.fleet_api.test_mutations import WEIGHTS, change, patches, publish, second_trainer

from fleet_api.idempotency import ANNOTATION, MAX_CONFLICTS, MAX_KEYS
from rlfleet.errors import Refused
from rlfleet.ports import Kind


async def test_a_request_with_a_known_key_is_answered_and_not_repeated(api):
    first = await publish(api, key="step-43")
    made = len(patches(api))
    again = await publish(api, key="step-43")

    assert first[0] == again[0] == 200
    assert again[1]["version"] == "43"
    assert len(patches(api)) == made == 1


async def test_only_a_new_request_for_an_applied_version_makes_the_operator_look_again(api):
    await publish(api, key="step-43")
    assert "rlfleet.dev/retry" not in api.cluster.objects.weights["metadata"]["annotations"]
    await publish(api, key="step-43")
    assert "rlfleet.dev/retry" not in api.cluster.objects.weights["metadata"]["annotations"]

    assert (await publish(api, key="step-43-rewritten"))[0] == 200
    weights = api.cluster.objects.weights
    mark = weights["metadata"]["annotations"]["rlfleet.dev/retry"]
    assert weights["status"]["retried"] == mark


async def test_a_retry_with_a_known_key_tries_once(api):
    assert [(await change(api, "retry", "once"))[0] for _ in range(2)] == [200, 200]
    assert len(patches(api)) == 1


async def test_a_repetition_is_not_answered_with_a_version_that_came_after_it(api):
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


async def test_a_repetition_of_a_retry_ignores_the_refusal_from_before_it(api):
    objects = api.cluster.objects
    objects._obeys = False
    objects.desire(version="43")
    objects.stall("FailureBudgetExceeded")
    assert (await change(api, "retry", "once"))[0] == 504
    objects.stall("FailureBudgetExceeded")  # as the worker remembers it
    objects.script.extend([lambda: objects.look("Staging"), objects.apply])

    status, rollout = await change(api, "retry", "once")
    assert (status, rollout.get("applied")) == (200, True)


async def test_a_repetition_of_a_retry_is_answered_at_once_with_its_own_refusal(api):
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


async def test_a_late_repetition_does_not_bring_an_old_version_back(api):
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
    api, first, second, by
):
    for body, key in ((first, "of-run-7"), (second, "of-run-8")):
        assert (await publish(api, key=key, **body))[0] == 200

    status, problem = await publish(api, key="of-run-7", **first)
    assert (status, problem["reason"]) == (409, "Superseded")
    assert f"replaced by {by} " in problem["detail"]


async def test_a_late_repetition_of_a_rollback_that_had_nothing_to_do_does_nothing(api):
    back = partial(change, api, "rollback", "back", version="42")
    assert (await back())[0] == 200
    await publish(api, "43", key="step-43")

    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_a_late_repetition_of_a_rollback_does_not_take_another_runs_number_for_its_own(api):
    back = partial(change, api, "rollback", "back", version="41")
    assert [(await back())[0] for _ in range(2)] == [200, 200]
    await publish(api, "41", runID="run-8")

    status, problem = await back()
    assert (status, problem["reason"]) == (409, "Superseded")
    assert "replaced by 41 of run run-8 " in problem["detail"]


async def test_a_rollback_with_a_key_keeps_run_and_files_together_after_a_conflict(api):
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


async def test_keys_that_are_written_at_the_same_time_are_both_remembered(api):
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


async def test_a_request_that_two_replicas_get_at_once_is_carried_out_once(api):
    retry = partial(change, api, "retry", "one", wait=False)
    results = await both(api, retry(), retry())

    assert [(status, rollout["applied"]) for status, rollout in results] == [(202, False)] * 2
    annotation = api.cluster.objects.weights["metadata"]["annotations"][ANNOTATION]
    assert len(json.loads(annotation)) == 1


async def test_a_status_that_the_operator_writes_does_not_fail_a_request_with_a_key(api):
    real = api.cluster.objects.patch

    async def patch(*arguments: Any) -> Any:
        if len(patches(api)) < MAX_CONFLICTS + 3:
            api.cluster.objects.write(workersApplied=f"{len(patches(api))}/99")
        return await real(*arguments)

    api.cluster.objects.patch = patch
    assert (await publish(api, key="step-43"))[0] == 200


async def test_one_key_for_two_requests_is_refused(api):
    await publish(api, "43", key="same")

    status, problem = await publish(api, "44", key="same")
    assert (status, problem["reason"]) == (422, "IdempotencyKeyReused")
    assert api.cluster.objects.weights["spec"]["version"] == "43"


async def test_two_callers_do_not_share_a_key(api):
    second_trainer(api)
    await publish(api, "43", key="same")

    status, _ = await api.send(
        "PUT", WEIGHTS, "second", json={"version": "44"}, headers={"Idempotency-Key": "same"}
    )
    assert status == 200
    assert api.cluster.objects.weights["spec"]["version"] == "44"


async def test_a_key_is_not_remembered_for_a_change_that_failed(api):
    real = api.cluster.objects.patch

    async def refuse(*_: Any) -> Any:
        raise Refused("43", "Invalid", "not now")

    api.cluster.objects.patch = refuse
    assert (await publish(api, key="step-43"))[0] == 422
    api.cluster.objects.patch = real
    assert (await publish(api, key="step-43"))[0] == 200
    assert len(patches(api)) == 1


async def test_the_last_keys_are_remembered_and_never_in_clear(api):
    for version in range(43, 43 + MAX_KEYS + 5):
        await publish(api, str(version), key=f"secret-key-{version}")

    annotation = api.cluster.objects.weights["metadata"]["annotations"][ANNOTATION]
    assert len(json.loads(annotation)) == MAX_KEYS
    assert "secret-key" not in annotation


@pytest.mark.parametrize("broken", ["{", "1", "[1]", '[["a"]]', "[[[["])
async def test_an_annotation_that_cannot_be_read_stops_nothing(api, broken):
    weights = api.cluster.objects.weights
    assert weights is not None
    weights["metadata"]["annotations"] = {ANNOTATION: broken}

    assert (await publish(api, key="step-43"))[0] == 200


@pytest.mark.parametrize("key", [" ", "a b", "k" * 256])
async def test_a_malformed_key_is_400(api, key):
    status, problem = await publish(api, key=key)

    assert (status, problem["reason"]) == (400, "BadRequest")
    assert patches(api) == []


async def test_a_first_patch_that_only_clears_a_rollback_does_not_use_the_key(api):
    api.cluster.objects.desire(rollbackTo="41")
    await change(api, "rollback", "back", version="41")
    first, second = patches(api)

    assert first["spec"] == {"rollbackTo": None}
    assert "annotations" not in first["metadata"]
    assert ANNOTATION in second["metadata"]["annotations"]
