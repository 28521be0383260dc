"""Rollback and retry of the client, over a fake API server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_objects import FakeObjects, condition, patches

from rlfleet import (
    NotFound,
    Refused,
    Weights,
)

DIGEST = f"sha256:{'41' * 32}"
BACK = {
    "version": "41",
    "runID": None,
    "rollbackTo": "41",
    "digest": None,
    "source": {"path": "/weights/step_{version}", "uri": None, "huggingFace": None},
}


def test_a_rollback_sets_version_and_permission(call):
    objects = FakeObjects(digest="sha256:42")

    assert call(objects, "rollback", "41").applied
    assert [body["spec"] for body in patches(objects)] == [BACK]


def test_a_second_rollback_to_the_same_version_first_removes_the_permission(call):
    objects = FakeObjects(rollbackTo="41")

    assert call(objects, "rollback", "41").applied
    assert [body["spec"] for body in patches(objects)] == [
        {"rollbackTo": None},
        BACK,
    ]


def test_a_rollback_to_the_desired_version_changes_nothing(call):
    objects = FakeObjects()

    assert call(objects, "rollback", "42").applied
    assert patches(objects) == []


def test_a_rollback_names_the_digest_that_the_fleet_requires(call):
    objects = FakeObjects(digest="sha256:42")

    assert call(objects, "rollback", "41", digest=DIGEST).applied
    assert [body["spec"] for body in patches(objects)] == [BACK | {"digest": DIGEST}]
    assert call(objects, "rollback", "41", digest=DIGEST).applied
    assert len(patches(objects)) == 1


def test_a_digest_of_the_desired_version_is_refused_with_the_way_to_set_it(call):
    """The API server permits no change of it, and a reply without an error would say that it is set."""
    objects = FakeObjects()

    with pytest.raises(Refused, match="undo") as refused:
        call(objects, "rollback", "42", digest=DIGEST)
    assert refused.value.reason == "Invalid"
    assert patches(objects) == []


def test_a_rollback_to_the_desired_version_permits_no_other_files(call):
    objects = FakeObjects()

    assert call(objects, "rollback", "42", path="/weights/step_42/").applied
    with pytest.raises(Refused) as refused:
        call(objects, "rollback", "42", path="/weights/repaired_42")

    assert refused.value.reason == "VersionReused"
    assert "/weights/step_42" in refused.value.message
    assert patches(objects) == []


def test_a_rollback_takes_the_path_from_the_fleets_status(call):
    objects = FakeObjects(source={"path": "/weights/new/step_42"})

    rollout = call(objects, "rollback", "41")

    assert rollout.weights.spec.source.path == "/weights/step_41"


@pytest.mark.parametrize(
    ("before", "path", "files"),
    [
        ("/run-7/step_42", None, {"path": "/run-7/41"}),
        ("/run-7/step_42", "/run-7/copy_of_41", {"path": "/run-7/copy_of_41"}),
        ("/run-7/step_{version}", None, {"path": "/run-7/step_{version}"}),
    ],
)
def test_a_rollback_keeps_run_and_files_together_when_another_run_starts_meanwhile(
    monkeypatch, call, before, path, files
):
    objects = FakeObjects(source={"path": before}, runID="run-7")
    assert objects.fleet is not None
    pin = {
        "version": "41",
        "runID": "run-7",
        "digest": f"sha256:{32 * '41'}",
        "source": {"path": "/run-7/41"},
    }
    objects.fleet["status"]["pinned"] = [pin]
    template = "{version}" in before
    pin["source"]["path"] = "/run-7/step_41" if template else "/run-7/41"
    real = objects.patch

    async def patch(*arguments: Any) -> Any:
        other = {"path": None, "huggingFace": {"repo": "org/run-8", "revision": "{version}"}}
        objects.desire(version="44", runID="run-8", source=other)
        return await real(*arguments)

    monkeypatch.setattr(objects, "patch", patch)
    spec = call(objects, "rollback", "41", path=path, wait=False).weights.spec

    assert (spec.version, spec.run_id) == ("41", "run-7")
    assert spec.source.model_dump(exclude_none=True) == files


def test_a_rollback_of_an_adapter_takes_the_path_of_its_own_version(call):
    objects = FakeObjects(source={"path": "/weights/new/step_42"}, adapter="math")
    assert objects.fleet is not None
    pin = {"version": "41", "digest": f"sha256:{'1' * 64}", "source": {"path": "/weights/math/41"}}
    objects.fleet["status"]["pinnedAdapters"] = [pin | {"adapter": "math"}]

    rollout = call(objects, "rollback", "41")

    assert rollout.weights.spec.source.path == "/weights/math/41"


def test_a_rollback_to_an_unknown_version_needs_a_path(call):
    objects = FakeObjects(source={"path": "/weights/new/step_42"})

    with pytest.raises(NotFound, match="path="):
        call(objects, "rollback", "17")
    assert patches(objects) == []
    assert call(objects, "rollback", "17", path="/old/17").weights.spec.source.path == "/old/17"


def test_a_retry_waits_for_a_status_after_it(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("FailureBudgetExceeded")
    objects.script.extend([lambda: objects.look("Staging"), objects.apply])

    assert call(objects, "retry").applied


def test_a_retry_that_fails_again_is_refused(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("CheckpointTruncated")
    later = {"lastTransitionTime": "2026-11-22T12:00:00Z"}
    objects.script.append(
        lambda: objects.stall("CheckpointTruncated")
    )  # as the worker remembers it
    objects.script.append(lambda: objects.stall("CheckpointTruncated", **later))
    before = objects.now

    with pytest.raises(Refused):
        call(objects, "retry")

    assert objects.now == before


def test_a_retry_without_a_change_is_refused_at_its_timeout(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("CheckpointTruncated")
    objects.script.append(lambda: objects.stall("CheckpointTruncated"))
    before = objects.now

    with pytest.raises(Refused, match="CheckpointTruncated"):
        call(objects, "retry", timeout_seconds=20)

    assert objects.now - before == pytest.approx(20)


def test_a_retry_of_an_object_that_steers_nothing_is_refused(call):
    objects = FakeObjects(obeys=False)
    call(objects, "retry", wait=False)
    reported = condition("Stalled", "FleetNotFound", 2)
    objects.script.append(lambda: objects.look("Pending", reported, retried="", startedAt=None))

    with pytest.raises(Refused, match="FleetNotFound"):
        call(objects, "publish", "43")


def test_a_status_from_before_a_retry_is_ignored_for_a_later_version(call):
    objects = FakeObjects(obeys=False)
    call(objects, "retry", wait=False)
    reported = condition("Stalled", "SourceNotFound", 2)
    objects.script.append(lambda: objects.look("Staging", reported, retried="an older one"))
    objects.script.append(objects.apply)

    assert call(objects, "publish", "43").applied


def test_a_retry_of_another_writer_does_not_hide_the_outcome(call):
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.look("Staging"))
    objects.script.append(lambda: Weights("policy", objects=objects).retry(wait=False))
    objects.script.append(objects.apply)
    before = objects.now

    assert call(objects, "publish", "43").applied
    assert objects.now == before
