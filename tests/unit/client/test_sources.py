"""Which files a requested version names, over a fake API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fake_objects import FakeObjects, condition, patches
from tests.support.present import present

from rlfleet import NotFound, Refused
from rlfleet.resources import WeightVersion
from rlfleet.sources import TEMPLATE, Publication, before, label_of, publication, rollback
from rlfleet_resources.fleet_status import PinnedWeights

FIXED = {"path": "/weights/step_42"}
STEPS = {"path": "/weights/step_{version}"}


def source(objects: FakeObjects) -> dict[str, Any]:
    found: dict[str, Any] = present(objects.weights)["spec"]["source"]
    return found


def kept(objects: FakeObjects) -> str | None:
    found: str | None = present(objects.weights)["metadata"].get("annotations", {}).get(TEMPLATE)
    return found


def pin(version: str, path: str, run_id: str | None = None) -> dict[str, Any]:
    found = {"version": version, "digest": f"sha256:{version:0>64}", "source": {"path": path}}
    return found | ({"runID": run_id} if run_id else {})


# --- publish --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "more"),
    [("43", {}), ("42", {"run_id": "run-8"}), ("43", {"digest": f"sha256:{'1' * 64}"})],
)
def test_a_label_never_names_the_files_of_another_one_by_itself(call, version, more):
    objects = FakeObjects(source=FIXED)

    with pytest.raises(Refused) as refused:
        call(objects, "publish", version, **more)

    assert refused.value.reason == "SourceFixed"
    for named in ("/weights/step_42", "--path", "--same-files"):
        assert named in refused.value.message
    assert patches(objects) == []


def test_a_branch_of_a_repository_is_not_the_files_of_every_version(call):
    repository = {"huggingFace": {"repo": "org/model", "revision": "main"}}
    objects = FakeObjects(source=repository)

    with pytest.raises(Refused, match="SourceFixed") as refused:
        call(objects, "publish", "43")
    for named in ("org/model@main", "revision", "--path"):
        assert named in refused.value.message
    by_version = {"huggingFace": {"repo": "org/model", "revision": "step-{version}"}}
    assert call(FakeObjects(source=by_version), "publish", "43").applied


def test_the_same_files_may_be_meant(call):
    objects = FakeObjects(source=FIXED)

    assert call(objects, "publish", "43", same_files=True).applied
    assert source(objects) == FIXED


def test_a_version_may_be_published_again_without_its_path(call):
    assert call(FakeObjects(source=FIXED), "publish", "42").applied


def test_a_path_that_is_the_template_filled_in_leaves_the_template(call):
    objects = FakeObjects()

    for path in ("/weights/step_43", "/weights/step_43/"):
        assert call(objects, "publish", "43", path=path).applied
        assert source(objects) == STEPS
    assert call(objects, "publish", "44").applied
    assert (source(objects), kept(objects)) == (STEPS, None)


def test_a_template_that_another_path_replaced_is_offered_and_comes_back(call):
    objects = FakeObjects()
    call(objects, "publish", "43", path="/other/43")
    assert source(objects) == {"path": "/other/43"}
    call(objects, "publish", "44", path="/other/44")

    with pytest.raises(Refused, match="--path /weights/step_45"):
        call(objects, "publish", "45")
    assert call(objects, "publish", "45", path="/weights/step_45").applied

    assert (source(objects), kept(objects)) == (STEPS, None)
    assert call(objects, "publish", "46").applied


def test_a_version_that_is_sent_again_keeps_its_source_and_its_digest(call):
    """The API server refuses others for a label."""
    digest = f"sha256:{'4' * 64}"
    objects = FakeObjects(source=FIXED, digest=digest)
    objects.weights["metadata"]["annotations"] = {TEMPLATE: '{"path": "/weights/step_{version}"}'}

    assert call(objects, "publish", "42", path="/weights/step_42").applied
    assert (source(objects), objects.weights["spec"]["digest"]) == (FIXED, digest)


class TestVersionsThatArePublishedAgain:
    """Their files may have been written over, and the object would not change."""

    @pytest.mark.parametrize("phase", ["Applied", "Comparing"])
    def test_one_that_all_workers_serve_is_applied_only_after_the_operator_has_looked_again(
        self, call, phase
    ):
        objects = FakeObjects()
        objects.look(phase)

        assert not call(objects, "publish", "42", wait=False).applied
        rollout = call(objects, "publish", "42")

        assert rollout.applied
        assert rollout.weights.status.retried == rollout.weights.retry != ""

    def test_other_files_are_refused(self, call):
        objects = FakeObjects(obeys=False)
        objects.script.append(lambda: objects.stall("VersionReused"))

        with pytest.raises(Refused, match="VersionReused"):
            call(objects, "publish", "42")

    @pytest.mark.parametrize(
        "phase", ["Pending", "Staging", "Pausing", "Loading", "Resuming", "Suspended", "Halted"]
    )
    @pytest.mark.parametrize(
        ("applied", "is_marked"),
        [
            pytest.param("41", False, id="its first rollout continues, and reads the files"),
            pytest.param("42", True, id="a worker joins: all others have it, and read nothing"),
        ],
    )
    def test_the_operator_must_look_again_once_all_workers_had_the_version(
        self, call, phase, applied, *, is_marked
    ):
        objects = FakeObjects(obeys=False)
        source = {"path": f"/weights/step_{applied}"}
        record = {"version": applied, "source": source, "appliedAt": "2026-11-22T10:00:00Z"}
        objects.look(phase, applied=record)

        assert bool(call(objects, "publish", "42", wait=False).weights.retry) == is_marked

    def test_a_version_that_is_applied_for_another_one_is_not_meant(self, call):
        objects = FakeObjects(obeys=False)
        objects.desire(version="43")

        assert call(objects, "publish", "43", wait=False).weights.retry == ""

    def test_a_digest_says_which_files_are_meant(self, call):
        objects = FakeObjects(digest=f"sha256:{'4' * 64}")

        assert call(objects, "publish", "42").weights.retry == ""


@pytest.mark.parametrize(
    ("method", "version", "more"),
    [
        ("publish", 4.0, {}),
        ("publish", "", {}),
        ("publish", "a b", {}),
        ("publish", "43", {"digest": ""}),
        ("publish", "43", {"digest": "SHA256:" + "a" * 64}),
        ("publish", "43", {"run_id": ""}),
        ("publish", "43", {"path": ""}),
        ("publish", "43", {"path": "weights/step_43"}),
        ("publish", "43", {"path": f"/weights/{'x' * 1024}"}),
        ("publish", "43", {"traceparent": "garbage"}),
        ("rollback", None, {}),
        ("rollback", "41", {"path": ""}),
    ],
    ids=str,
)
def test_an_argument_that_means_nothing_is_refused_before_any_request(call, method, version, more):
    objects = FakeObjects()

    with pytest.raises(Refused) as refused:
        call(objects, method, version, **more, wait=False)

    assert refused.value.reason == "Invalid"
    assert (next(iter(more), "version")) in refused.value.message
    assert objects.requests == []


def test_the_object_of_another_fleet_than_the_wanted_one_is_left_alone(call):
    objects = FakeObjects()

    with pytest.raises(Refused, match=r"'judge'.*'policy'") as refused:
        call(objects, "publish", "43", path="/weights/43", create_for="judge")

    assert refused.value.reason == "Invalid"
    assert patches(objects) == []


def test_a_path_may_be_a_template_itself(call):
    objects = FakeObjects(source=FIXED)

    call(objects, "publish", "43", path="/run-8/step_{version}")

    assert source(objects) == {"path": "/run-8/step_{version}"}
    assert call(objects, "publish", "44").applied


def test_version_run_and_source_are_written_together_although_another_writer_comes_between(
    call, monkeypatch
):
    objects = FakeObjects(obeys=False, runID="run-7")
    real = objects.patch

    async def patch(*arguments: Any) -> Any:
        objects.desire(version="1", runID="run-8", source={"path": "/run-8/step_1"})
        return await real(*arguments)

    monkeypatch.setattr(objects, "patch", patch)
    spec = call(objects, "publish", "43", wait=False).weights.spec

    assert (spec.version, spec.run_id, spec.source.path) == ("43", "run-7", STEPS["path"])


@pytest.mark.parametrize("broken", ["", "no JSON", "[]", '{"path": "/fixed"}'])
def test_a_kept_template_that_cannot_be_read_is_ignored(call, broken):
    objects = FakeObjects(source=FIXED)
    present(objects.weights)["metadata"]["annotations"] = {TEMPLATE: broken}

    with pytest.raises(Refused, match="SourceFixed"):
        call(objects, "publish", "43")
    assert call(objects, "publish", "43", path="/weights/step_43").applied
    assert (source(objects), kept(objects)) == ({"path": "/weights/step_43"}, None)


# --- going back -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "arguments"), [("rollback", ["42"]), ("undo", [])])
def test_going_back_from_a_path_restores_the_template_and_the_version(call, method, arguments):
    objects = FakeObjects(obeys=False)
    objects.fleet["status"]["pinned"] = [pin("42", "/weights/step_42")]
    call(objects, "publish", "43", path="/weights/none", wait=False)
    objects.stall("SourceNotFound")

    back = call(objects, method, *arguments, wait=False)

    assert back.version == "42"
    assert (source(objects), kept(objects)) == (STEPS, None)


def test_a_version_with_a_path_of_its_own_keeps_it_and_the_template_is_kept(call):
    objects = FakeObjects()
    objects.fleet["status"]["pinned"] = [pin("41", "/old/41")]

    call(objects, "rollback", "41")

    assert source(objects) == {"path": "/old/41"}
    assert call(objects, "publish", "43", path="/weights/step_43").applied
    assert source(objects) == STEPS


@pytest.mark.parametrize("where", [STEPS, FIXED])
def test_a_version_that_the_fleet_never_had_is_not_found_and_those_that_it_had_are_named(
    call, where
):
    objects = FakeObjects(source=where)
    pins = [pin("40", "/weights/step_40"), pin("99", "/weights/step_99", "run-8")]
    objects.fleet["status"]["pinned"] = pins

    with pytest.raises(NotFound, match="version 99; it has: 40, 42, 41") as missing:
        call(objects, "rollback", "99")

    assert "--path" in str(missing.value)
    assert patches(objects) == []
    assert call(objects, "rollback", "99", path="/copy/99", wait=False).version == "99"


def test_a_long_past_is_named_in_part(call):
    objects = FakeObjects()
    objects.fleet["status"]["pinned"] = [pin(str(n), f"/w/{n}") for n in range(130, 100, -1)]

    with pytest.raises(NotFound, match=r"130, .* 121 and 22 more"):
        call(objects, "rollback", "99")


def test_a_version_of_the_history_without_a_pin_is_where_the_template_says(call):
    objects = FakeObjects()
    objects.fleet["status"]["pinned"] = []

    assert call(objects, "rollback", "41").applied
    assert source(objects) == STEPS


def test_undo_returns_to_what_is_applied_also_to_another_run(call):
    """As after the first version of a new run that is refused."""
    objects = FakeObjects(obeys=False)
    call(objects, "publish", "1", run_id="run-8", path="/weights/none", wait=False)
    objects.look("Staging", condition("Stalled", "SourceNotFound", 2))

    spec = call(objects, "undo", wait=False).weights.spec

    assert (spec.version, spec.run_id, spec.source.path) == ("42", None, STEPS["path"])


def test_undo_without_a_version_before_says_how_to_name_one(call):
    objects = FakeObjects()
    objects.write(history=[])

    with pytest.raises(NotFound, match="rlfleet rollback VERSION policy -n rl"):
        call(objects, "undo")
    assert patches(objects) == []


# --- whatever comes -------------------------------------------------------------------------------

PATHS = ["/a/step_{version}", "/b/{version}", "/a/step_1", "/a/step_2", "/b/1", "/c", "/b/2/"]
LABELS = st.tuples(st.sampled_from(["1", "2", "3"]), st.sampled_from([None, "r"]))
REQUESTS = st.one_of(
    st.builds(
        lambda label, path, same: Publication(
            version=label[0], run_id=label[1], path=path, same_files=same
        ),
        LABELS,
        st.sampled_from([None, *PATHS]),
        st.just(False),
    ),
    st.tuples(LABELS, st.sampled_from([None, *PATHS])),
    st.just("undo"),
)


@given(st.sampled_from(PATHS[:6]), st.lists(REQUESTS, max_size=12))
@example(
    "/a/step_2",
    [
        Publication(version="1", run_id="r", path="/a/step_{version}"),
        Publication(version="2"),
    ],
)
def test_after_any_requests_two_labels_name_one_directory_only_if_their_writer_named_it(
    first, requests
):
    """Every version is applied at once, and a template is never lost."""
    seen = look(first)
    was_template, files = seen.spec.source.is_template, {}
    named = set[Any]() if was_template else {label_of(seen)}
    files[label_of(seen)] = seen.spec.source.resolve("1")
    for request in requests:
        pins = [
            PinnedWeights(version=v, run_id=r, digest=f"sha256:{64 * '0'}", source=s)
            for (v, r), s in reversed(files.items())
        ]
        try:
            if isinstance(request, Publication):
                bodies, path = [publication(seen, request)], request.path
            elif request == "undo":
                path, bodies = None, rollback(seen, before(seen), None, pins)
            else:
                label, path = request
                bodies = rollback(seen, label, path, pins)
        except (Refused, NotFound):
            continue
        for body in bodies:
            seen = patched(seen, body)
        label, where = label_of(seen), seen.spec.source.resolve(seen.spec.version)
        was_template |= seen.spec.source.is_template
        assert (
            seen.spec.source.is_template
            or TEMPLATE in seen.metadata.annotations
            or (not was_template)
        )
        if path is not None:
            named.add(label)
        elif label not in named:
            others = [one for one, at in files.items() if at == where and one[0] != label[0]]
            assert not others or named & set(others), (request, label, where, files)
        files.pop(label, None)
        files[label] = where


def look(path: str) -> WeightVersion:
    spec = {"fleetRef": {"name": "f"}, "version": "1", "source": {"path": path}}
    return WeightVersion.model_validate({"metadata": {"name": "policy"}, "spec": spec})


def patched(seen: WeightVersion, body: dict[str, Any]) -> WeightVersion:
    """The object after a merge patch, with its version applied."""
    spec = seen.spec.model_dump(by_alias=True) | body["spec"]
    annotations = seen.metadata.annotations | body.get("metadata", {}).get("annotations", {})
    kept = {name: value for name, value in annotations.items() if value is not None}
    label = {"version": spec["version"], "runID": spec["runID"]}
    past = [entry.model_dump(by_alias=True) for entry in seen.status.history]
    entry = label | {"result": "Applied", "startedAt": "2026-11-22T10:00:00Z", "totalSeconds": 1}
    return WeightVersion.model_validate(
        {
            "metadata": {"name": "policy", "annotations": kept},
            "spec": spec,
            "status": {"applied": label, "history": [entry, *past]},
        }
    )
