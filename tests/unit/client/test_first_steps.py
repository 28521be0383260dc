"""The first minutes with the client: numbers and paths as they are, typing mistakes, notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.fake_objects import FakeObjects

import rlfleet
from fleet_api.changes import _WeightsOfCaller
from rlfleet.errors import Forbidden, NotFound, Refused, RlfleetError

UNESCAPED = '<script>alert("1")</script>'


class Step:
    """A number of another library, such as NumPy's."""

    def __index__(self) -> int:
        return 43


@pytest.mark.parametrize("version", [43, Step(), "43"])
@pytest.mark.parametrize("method", ["publish", "rollback"])
def test_a_step_may_be_a_number_and_a_directory_a_path(call, method, version):
    objects = FakeObjects()

    done = call(objects, method, version, path=Path("/weights/step_43"))

    assert (done.version, done.applied) == ("43", True)
    assert objects.weights is not None
    assert objects.weights["spec"]["version"] == "43"


@pytest.mark.parametrize("version", [True, b"43", -1])
def test_other_values_than_labels_and_numbers_are_refused(call, version):
    with pytest.raises(Refused) as refused:
        call(FakeObjects(), "publish", version)

    assert refused.value.reason == "Invalid"


@pytest.mark.parametrize(
    "method", ["publish", "rollback", "undo", "retry", "suspend", "current", "history", "metrics"]
)
def test_a_name_that_does_not_exist_is_answered_by_similar_ones(call, method):
    objects = FakeObjects().rename("policy-b")
    arguments = ["43"] if method in {"publish", "rollback"} else []

    with pytest.raises(NotFound, match="Did you mean policy-b") as missing:
        call(objects, method, *arguments)
    assert str(missing.value).count("Did you mean") == 1


def test_names_that_are_not_similar_are_listed(call):
    with pytest.raises(NotFound, match="There are: value-model"):
        call(FakeObjects().rename("value-model"), "current")


def test_a_name_that_does_not_exist_needs_no_right_to_list(call):
    objects = FakeObjects().rename("policy-b")
    objects.forbidden.add("all weightversions")

    with pytest.raises(NotFound) as missing:
        call(objects, "current")
    assert "Did you mean" not in str(missing.value)


async def test_a_service_for_others_lists_and_names_nothing():
    """The RL API: its caller may have no right to know the other names."""
    objects = FakeObjects().rename("policy-b")
    weights = _WeightsOfCaller("policy", objects=objects)

    with pytest.raises(NotFound) as missing:
        await weights.publish("43")

    assert "policy-b" not in str(missing.value)
    assert "all weightversions" not in [request for request, _ in objects.requests]


def test_a_version_without_a_record_is_not_taken_for_a_missing_name(call):
    with pytest.raises(NotFound, match="no record") as missing:
        call(FakeObjects(), "rollback", "7")
    assert "Did you mean" not in str(missing.value)


def test_a_client_that_is_closed_says_so():
    weights = rlfleet.Weights("policy", objects=FakeObjects())
    weights.close()
    weights.close()

    with pytest.raises(RlfleetError, match="closed"):
        weights.current()


def test_the_last_line_of_a_cell_is_one_line(call):
    objects = FakeObjects(runID="run-7")
    rollout = call(objects, "publish", "43")

    for shown in (rollout, rollout.weights, call(objects, "workers")):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 200
        assert str(shown) == repr(shown)
    assert "43 of run run-7" in repr(rollout)
    assert "1.90s" in repr(rollout)
    assert "phase Applied" in repr(rollout.weights)
    assert "42 by 4" in repr(call(objects, "workers"))


def test_a_notebook_draws_the_phases_to_one_scale(call):
    page = call(FakeObjects(), "publish", "43")._repr_html_()

    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([0-9.]+)"', page)]
    staging, pausing, loading, resuming = widths  # 1.0, 0.2, 0.4 and 0.1 s of the fake
    assert staging / loading == pytest.approx(2.5, rel=0.01)
    assert pausing / resuming == pytest.approx(2.0, rel=0.01)
    inks = re.findall(r"--ink: ([^;]+);", page)
    assert inks[-1] == "currentColor", "the notebook may be dark in a light browser"


def test_a_notebook_shows_what_others_wrote_as_text(call):
    objects = FakeObjects()
    unchanged = {
        "type": "WeightsUnchanged", "status": "True", "reason": "SameFiles", "message": UNESCAPED,
        "observedGeneration": 2, "lastTransitionTime": "2026-11-22T10:00:00Z",
    }  # fmt: skip
    rollout = call(objects, "publish", "43")
    objects.write(conditions=[unchanged])

    page = call(objects, "wait")._repr_html_()

    assert rollout.unchanged == ""
    assert "alert" in page
    assert UNESCAPED not in page


def test_the_package_names_its_release():
    assert re.fullmatch(r"\d+(\.\d+)*([+.]\w+)?", rlfleet.__version__)


def test_a_missing_right_is_reported_as_such(call):
    objects = FakeObjects()
    objects.failures.append(Forbidden("no"))

    with pytest.raises(Forbidden):
        call(objects, "current")
