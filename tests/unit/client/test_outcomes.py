"""How the client waits for a published version, over a fake API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_objects import TIMINGS, FakeObjects, condition, patches
from tests.support.present import present

from rlfleet import (
    NotFound,
    Refused,
    RlfleetError,
    Rollout,
    Superseded,
    TimedOut,
    Unavailable,
)
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Asked, outcome
from rlfleet_resources.names import ANNOTATION_TRACEPARENT

# --- publish --------------------------------------------------------------------------------------


def test_an_applied_version_returns_its_timings(call):
    objects = FakeObjects()

    rollout: Rollout = call(objects, "publish", "43", path="/weights/step_43")

    assert (rollout.version, rollout.applied, rollout.workers.applied) == ("43", True, 4)
    assert rollout.timings.model_dump(by_alias=True) == TIMINGS
    assert patches(objects) == [
        {
            "metadata": {"annotations": {ANNOTATION_TRACEPARENT: None}},
            "spec": {
                "version": "43",
                "runID": None,
                "digest": None,
                "source": {"path": "/weights/step_{version}", "uri": None, "huggingFace": None},
            },
        }
    ]


def test_a_rollout_is_part_of_the_trace_of_its_own_publication_only(call):
    objects = FakeObjects()
    span = f"00-{'a' * 32}-{'b' * 16}-01"

    call(objects, "publish", "43", traceparent=span)
    assert annotation(objects) == span
    call(objects, "publish", "44")
    assert annotation(objects) is None
    call(objects, "publish", "45", traceparent=span)
    call(objects, "rollback", "44", path="/weights/step_44")
    assert annotation(objects) is None


def test_a_created_object_begins_in_the_trace_of_its_publication(call):
    objects = FakeObjects()
    objects.delete()
    span = f"00-{'a' * 32}-{'b' * 16}-01"

    call(objects, "publish", "43", path="/w", create_for="policy", traceparent=span, wait=False)

    (created,) = [body for request, body in objects.requests if request.startswith("create")]
    assert created["metadata"]["annotations"] == {ANNOTATION_TRACEPARENT: span}


def annotation(objects: FakeObjects) -> str | None:
    found: str | None = (
        present(objects.weights)["metadata"].get("annotations", {}).get(ANNOTATION_TRACEPARENT)
    )
    return found


def test_the_digest_of_the_version_before_is_removed(call):
    objects, digest = FakeObjects(digest="sha256:42"), f"sha256:{'4' * 64}"

    assert "digest" not in call(objects, "publish", "43").weights.spec.model_dump(exclude_none=True)
    assert call(objects, "publish", "44", digest=digest).weights.spec.digest == digest


def test_without_wait_the_version_is_only_requested(call):
    objects = FakeObjects()

    rollout = call(objects, "publish", "43", wait=False)

    assert (rollout.version, rollout.applied, rollout.timings.total_seconds) == ("43", False, 0)
    assert [request for request, _ in objects.requests] == [
        "get weightversions",
        "patch weightversions",
    ]


def test_a_version_that_is_already_applied_with_its_digest_returns_at_once(call):
    objects = FakeObjects(digest=f"sha256:{'4' * 64}")

    rollout = call(objects, "publish", "42")

    assert (rollout.applied, rollout.timings.total_seconds) == (True, 1.7)
    assert [request for request, _ in objects.requests] == [
        "get weightversions",
        "patch weightversions",
    ]


def test_a_stalled_rollout_is_refused_at_once_with_reason_and_message(call):
    objects = FakeObjects(obeys=False)
    objects.script.extend(
        [lambda: objects.look("Staging"), lambda: objects.stall("DigestMismatch")]
    )
    before = objects.now

    with pytest.raises(Refused) as refused:
        call(objects, "publish", "43", timeout_seconds=600)

    assert (refused.value.reason, refused.value.version) == ("DigestMismatch", "43")
    assert refused.value.message == "because of DigestMismatch"
    assert objects.now == before


def test_a_stall_of_an_older_generation_is_ignored(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("CheckpointTruncated")
    objects.script.extend([lambda: objects.look("Loading"), objects.apply])

    assert call(objects, "publish", "44").applied


def test_a_status_of_an_older_generation_is_ignored(call):
    objects = FakeObjects(obeys=False)

    def late() -> None:
        generation = present(objects.weights)["metadata"]["generation"] - 1
        objects.apply(observedGeneration=generation)

    objects.script.extend([late, lambda: objects.stall("SourceNotFound")])

    with pytest.raises(Refused, match="SourceNotFound"):
        call(objects, "publish", "43")


def test_a_refused_version_published_again_unchanged_is_refused_at_once(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("CheckpointTruncated")

    with pytest.raises(Refused, match="CheckpointTruncated"):
        call(objects, "publish", "43")


def test_a_spec_that_the_operator_cannot_read_is_refused(call):
    objects = FakeObjects(obeys=False)
    reported = condition("Stalled", "InvalidSpec", 2)
    objects.script.append(
        lambda: objects.look(
            "Pending", reported, desiredVersion=None, desiredRunID=None, startedAt=None
        )
    )

    with pytest.raises(Refused, match="InvalidSpec"):
        call(objects, "publish", "43")


def test_a_later_version_of_another_writer_supersedes(call):
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.desire(version="44", writer="sweep-7"))

    with pytest.raises(Superseded, match="sweep-7") as raised:
        call(objects, "publish", "43")

    found = raised.value
    assert (found.version, found.by, found.writer) == ("43", "44", "sweep-7")


@pytest.mark.parametrize(
    "given",
    [
        {"model": object()},
        {"state_dict": [1]},
        {"directory": 5},
        {"state_dict": {}, "config_from": 5},
        {"written_to": 5},
        {"delta": "yes"},
        {"create_for": 5},
        {"timeout_seconds": "5"},
        {"timeout_seconds": None},
    ],
    ids=lambda given: list(given)[-1],
)
def test_an_argument_of_another_kind_is_named_before_anything_is_written(call, given):
    objects = FakeObjects()

    with pytest.raises(TypeError, match=f"^{list(given)[-1]} "):
        call(objects, "publish", "43", **given)

    assert patches(objects) == []


@pytest.mark.parametrize("verb", ["wait", "rollback", "undo", "retry"])
def test_each_wait_names_a_timeout_of_another_kind(call, verb):
    arguments = ["42"] if verb == "rollback" else []

    with pytest.raises(TypeError, match=r"^timeout_seconds "):
        call(FakeObjects(), verb, *arguments, timeout_seconds="5")


def test_a_wait_for_a_version_instead_of_its_rollout_is_named(call):
    with pytest.raises(TypeError, match=r"^rollout "):
        call(FakeObjects(), "wait", "43")


def test_the_same_number_of_another_run_supersedes(call):
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.desire(version="43", runID="run-9"))

    with pytest.raises(Superseded, match="43 of run run-9"):
        call(objects, "publish", "43", run_id="run-8")


def test_another_change_of_another_writer_does_not_supersede(call):
    objects = FakeObjects()
    objects.script.append(lambda: objects.desire(rollout={"maxFailures": 1}))

    assert call(objects, "publish", "43").applied


def test_a_version_that_was_applied_before_it_was_superseded_is_a_success(call):
    objects = FakeObjects(obeys=False)

    def missed() -> None:
        entry = {"version": "43", "result": "Applied", "startedAt": "2026-11-22T11:00:00Z"}
        history = [entry | {"totalSeconds": 2.5}, *present(objects.weights)["status"]["history"]]
        present(objects.weights)["status"]["history"] = history
        objects.desire(version="44")

    objects.script.append(missed)

    rollout = call(objects, "publish", "43")

    assert (rollout.applied, rollout.version, rollout.timings.total_seconds) == (True, "43", 2.5)


def test_a_version_that_was_refused_before_it_was_replaced_is_refused(call):
    objects = FakeObjects(obeys=False)

    def missed() -> None:
        entry = {"version": "43", "result": "Refused", "startedAt": "2026-11-22T11:00:00Z"}
        entry |= {"reason": "CheckpointTruncated", "message": "a file is short"}
        history = [entry | {"totalSeconds": 2.5}, *present(objects.weights)["status"]["history"]]
        present(objects.weights)["status"]["history"] = history
        objects.desire(version="44")

    objects.script.append(missed)

    with pytest.raises(Refused) as refused:
        call(objects, "publish", "43")
    assert (refused.value.reason, refused.value.message) == (
        "CheckpointTruncated",
        "a file is short",
    )


def test_an_older_rollout_of_the_same_version_does_not_count(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.script.append(lambda: objects.desire(version="44"))

    with pytest.raises(Superseded):
        call(objects, "publish", "42")


def test_a_deleted_object_ends_the_wait(call):
    objects = FakeObjects(obeys=False)
    objects.script.append(objects.delete)

    with pytest.raises(NotFound, match="was deleted before version 43 was applied"):
        call(objects, "publish", "43")


def test_a_recreated_object_ends_the_wait(call):
    objects = FakeObjects(obeys=False)

    def replace() -> None:
        spec = present(objects.weights)["spec"]
        objects.delete()
        objects.make(spec, uid="uid-9")
        objects.expire()

    objects.script.append(replace)

    with pytest.raises(NotFound, match="was deleted"):
        call(objects, "publish", "43")


# --- time -----------------------------------------------------------------------------------------


def test_an_endless_rollout_times_out_with_the_next_step(call):
    objects = FakeObjects(obeys=False)
    reported = condition("Progressing", "Staging", 2, message="1 of 4 workers holds 43")
    objects.script.append(lambda: objects.look("Staging", reported))
    before = objects.now

    with pytest.raises(
        TimedOut, match="phase Staging, 0/4 workers: 1 of 4 workers holds 43"
    ) as late:
        call(objects, "publish", "43", timeout_seconds=100)

    assert objects.now - before == pytest.approx(100)
    assert isinstance(late.value, TimeoutError)
    assert "undo" in str(late.value)
    assert present(objects.weights)["spec"]["version"] == "43"
    objects.script.append(objects.apply)
    assert call(objects, "wait").applied


def test_a_missing_operator_is_named(call):
    with pytest.raises(TimedOut, match="the operator has not observed it"):
        call(FakeObjects(obeys=False), "publish", "43", timeout_seconds=1)


def test_a_suspended_rollout_is_named(call):
    objects = FakeObjects(obeys=False)
    call(objects, "suspend")
    objects.script.append(lambda: objects.look("Suspended"))

    with pytest.raises(TimedOut, match=r"suspended; resume continues"):
        call(objects, "publish", "43", timeout_seconds=1)

    assert not call(objects, "resume").spec.suspend


def test_an_api_server_that_is_briefly_unavailable_is_waited_for(call):
    objects = FakeObjects()
    objects.failures.extend([Unavailable("away"), Unavailable("busy", retry_after_seconds=7)])
    before = objects.now

    assert call(objects, "publish", "43").applied
    assert objects.now - before == pytest.approx(7.2)


def test_an_api_server_lost_during_a_rollout_is_a_timeout_that_names_it(call):
    objects = FakeObjects(obeys=False)

    def away() -> None:
        objects.script.append(away)
        objects.failures.append(Unavailable("gone for good"))
        raise Unavailable("gone for good")

    objects.script.append(away)
    before = objects.now

    with pytest.raises(TimedOut) as late:
        call(objects, "publish", "43", timeout_seconds=30)

    assert "gone for good" in str(late.value.__cause__)
    assert objects.now - before == pytest.approx(30)


def test_an_api_server_that_never_answers_is_unavailable_after_a_minute(call):
    objects = FakeObjects()
    objects.failures.extend([Unavailable("away")] * 100)
    before = objects.now

    with pytest.raises(Unavailable):
        call(objects, "current")

    assert objects.now - before == pytest.approx(60)


# --- creating -------------------------------------------------------------------------------------


def test_a_missing_object_is_not_created_by_default(call):
    objects = FakeObjects()
    objects.delete()

    with pytest.raises(NotFound):
        call(objects, "publish", "1", path="/weights/1")
    assert objects.weights is None


def test_a_missing_object_is_created_for_a_fleet(call):
    objects = FakeObjects()
    objects.delete()

    rollout = call(objects, "publish", "1", path="/weights/1", create_for="policy")

    assert rollout.applied
    (created,) = [body for request, body in objects.requests if request.startswith("create")]
    assert created is not None
    assert created["spec"] == {
        "fleetRef": {"name": "policy"},
        "version": "1",
        "source": {"path": "/weights/1"},
    }


def test_an_object_that_was_created_meanwhile_is_patched(call):
    objects = FakeObjects()
    objects.failures.append(NotFound("not yet"))

    assert call(objects, "publish", "43", path="/weights/43", create_for="policy").applied
    assert [request for request, _ in objects.requests][:4] == [
        "get weightversions",
        "create weightversions",
        "get weightversions",
        "patch weightversions",
    ]


# --- whatever comes -------------------------------------------------------------------------------

STATUSES = st.fixed_dictionaries(
    {
        "observedGeneration": st.integers(-1, 7),
        "desiredVersion": st.sampled_from([None, "42", "43", "44"]),
        "phase": st.sampled_from(["Pending", "Staging", "Applied", "Halted", "", "Unheard"]),
        "retried": st.sampled_from(["", "a"]),
        "startedAt": st.sampled_from([None, "2026-11-22T10:00:00Z"]),
        "conditions": st.sampled_from(
            [
                [],
                [condition("Stalled", "SourceNotFound", 5)],
                [condition("Stalled", "SourceNotFound", 5, status="False")],
                [condition("Ready", "AllWorkersServing", 5)],
            ]
        ),
    }
)


def look(status: dict[str, Any], *, version: str = "43", generation: int = 5) -> WeightVersion:
    metadata = {"name": "policy", "uid": "u", "generation": generation, "resourceVersion": "1"}
    spec = {"fleetRef": {"name": "f"}, "version": version, "source": {"path": "/w"}}
    return WeightVersion.model_validate({"metadata": metadata, "spec": spec, "status": status})


@given(STATUSES, st.sampled_from(["42", "43", "44"]))
def test_an_outcome_comes_from_a_status_of_the_request_only(status, version):
    asked = Asked.by(look({}))
    try:
        done: Rollout | RlfleetError | None = outcome(asked, look(status, version=version))
    except RlfleetError as error:
        done = error

    current = status["observedGeneration"] >= 5
    if isinstance(done, Rollout):
        assert current
        assert (status["phase"], status["desiredVersion"]) == ("Applied", "43")
    elif isinstance(done, Refused):
        assert current
        assert status["desiredVersion"] in {"43", None}
        assert status["conditions"][0]["status"] == "True"
    elif isinstance(done, Superseded):
        assert version != "43"
    else:
        assert done is None
        assert version == "43"


def test_the_operator_names_the_writer_where_the_api_server_does_not():
    """The RL API shows no managed fields."""
    seen = look({"desiredVersion": "44", "requestedBy": "sweep-7"}, version="44")

    with pytest.raises(Superseded) as raised:
        outcome(Asked(version="43", run_id=None, generation=1, retry=""), seen)

    assert raised.value.writer == "sweep-7"


@given(STATUSES)
def test_an_outcome_is_computed_the_same_twice(status):
    asked = Asked.by(look({}))
    results = set()
    for _ in range(2):
        try:
            results.add(str(outcome(asked, look(status))))
        except RlfleetError as error:
            results.add(repr(error))

    assert len(results) == 1
