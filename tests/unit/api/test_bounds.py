"""Values at the bounds of the resources' patterns, as the operator and as the API server check them.

Both have the same bounds, words and required fields of what the operator reads (`tests/contract/test_crd_bounds.py`).
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.crd_checks import checker

from fleet_operator.api.fleet import FleetSpec, Rollout
from fleet_operator.api.weights import RolloutOverrides, WeightsSpec
from fleet_operator.core import worker_calls
from fleet_operator.core.actions import PutLora, RemoveLora, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.worker_view import PodView, WorkerView
from fleet_worker.protocol import MAX_TERM, Epoch
from rlfleet_resources.source import WeightSource

MODELS = {"inferencefleets": FleetSpec, "weightversions": WeightsSpec}
FLEET: dict[str, Any] = {
    "model": {"name": "m", "source": {"path": "/models/base"}},
    "engine": {"args": ["--a"], "env": [{"name": "A", "value": "1"}]},
    "weights": {
        "roots": ["/weights"],
        "volumes": [
            {"name": "w", "mountPath": "/weights", "persistentVolumeClaim": {"claimName": "c"}}
        ],
    },
    "rollout": {"canary": {"prompts": ["a"]}},
}
WEIGHTS: dict[str, Any] = {
    "fleetRef": {"name": "policy"},
    "version": "1",
    "source": {"path": "/weights/step_{version}"},
}
BASES = {"inferencefleets": FLEET, "weightversions": WEIGHTS}
DAY = 86_400


def with_value(plural: str, path: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(BASES[plural])
    place: Any = spec
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in parents:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value
    return spec


def verdicts(plural: str, path: str, value: Any) -> tuple[bool, bool]:
    """Whether the operator and whether the API server takes the value."""
    spec = with_value(plural, path, value)
    try:
        MODELS[plural].model_validate(spec)
    except ValidationError:
        taken = False
    else:
        taken = True
    return taken, checker(plural, "spec").is_valid(spec)


YES, NO = (True, True), (False, False)


PATHS = [
    ("inferencefleets", "model.source.path"),
    ("inferencefleets", "weights.roots.0"),
    ("inferencefleets", "weights.volumes.0.mountPath"),
    ("weightversions", "source.path"),
]


@pytest.mark.parametrize(("plural", "path"), PATHS)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("/a", YES, id="the shortest"),
        pytest.param("/" + "a" * 1023, YES, id="the longest"),
        pytest.param("/" + "a" * 1024, NO, id="one letter more"),
        pytest.param("/a b/ü", YES, id="with spaces and letters of all alphabets"),
        pytest.param("/", NO, id="the root"),
        pytest.param("", NO, id="none"),
        pytest.param("a/b", NO, id="a relative path"),
        pytest.param("/a/", NO, id="with a slash at its end"),
        pytest.param("/a//b", NO, id="with an empty part"),
        pytest.param("/a\x00", NO, id="with a zero"),
        pytest.param("/a\nb", NO, id="with a new line"),
        pytest.param("/a\x1b[31m", NO, id="with an escape"),
        pytest.param(7, NO, id="a number"),
    ],
)
def test_a_path_is_absolute_and_has_no_special_segments(
    plural: str, path: str, value: Any, expected: tuple[bool, bool]
) -> None:
    assert verdicts(plural, path, value) == expected


@pytest.mark.parametrize(
    ("plural", "path", "may_be_empty"),
    [
        ("inferencefleets", "model.version", False),
        ("weightversions", "version", False),
        ("weightversions", "runID", False),
        ("weightversions", "rollbackTo", False),
        ("weightversions", "adapter", True),
    ],
)
def test_a_version_fits_a_header_a_path_and_a_kubernetes_label(
    plural: str, path: str, may_be_empty: bool
) -> None:
    for good in ("1", "step_42", "step-42", "v1.2.3", "A", "a" * 63, "0" * 63):
        assert verdicts(plural, path, good) == YES, good
    for bad in ("-1", "1-", ".", "..", "a/b", "a b", "ü", "a" * 64, "_a", "a\x00", "a\r\nb", "é"):
        assert verdicts(plural, path, bad) == NO, bad
    assert verdicts(plural, path, "") == (YES if may_be_empty else NO)


def test_a_digest_is_sha256_with_64_lower_case_hexadecimal_digits() -> None:
    good = "sha256:" + "0123456789abcdef" * 4
    assert verdicts("weightversions", "digest", good) == YES
    for bad in (good[:-1], good + "0", good.upper(), good[7:], "md5:" + "0" * 32, "", " " + good):
        assert verdicts("weightversions", "digest", bad) == NO, bad


@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
def test_a_percentage_is_a_whole_number_from_1_to_100(plural: str) -> None:
    for good in ("1%", "9%", "10%", "99%", "100%"):
        assert verdicts(plural, "rollout.maxUnavailable", good) == YES, good
    for bad in ("0%", "00%", "01%", "101%", "1.5%", "-1%", "%", "25 %", "", "²%"):
        assert verdicts(plural, "rollout.maxUnavailable", bad) == NO, bad
    _, allowed = verdicts(plural, "rollout.maxUnavailable", "25")
    assert not allowed, "a number is not a text"


@pytest.mark.parametrize("name", ["A", "_A1", "a_b", "1A", "A-B", "A B", "A=B", "Ä", ""])
def test_a_variable_has_a_portable_name(name: str) -> None:
    _, allowed = verdicts("inferencefleets", "engine.env.0.name", name)

    assert allowed == (name in {"A", "_A1", "a_b"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("policy", YES), ("p-1", YES), ("Policy", NO), ("-p", NO), ("p\u202e", NO), ("p\x1b[31m", NO)],
)
def test_a_weightversion_names_what_can_be_a_fleet(name: str, expected: tuple[bool, bool]) -> None:
    assert verdicts("weightversions", "fleetRef.name", name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("w", YES), ("w-1", YES), ("1", YES), ("-w", NO), ("w-", NO), ("W", NO), ("a.b", NO)],
)
def test_a_volumes_name_is_a_dns_label(name: str, expected: tuple[bool, bool]) -> None:
    assert verdicts("inferencefleets", "weights.volumes.0.name", name) == expected


def test_unknown_fields_of_a_newer_release_are_ignored() -> None:
    spec = with_value("inferencefleets", "rollout.fromTheFuture", {"a": 1})

    assert FleetSpec.model_validate(spec) == FleetSpec.model_validate(FLEET)


# --- what a version changes of the fleet's rollout ----------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "place", "value"),
    [
        ({"strategy": "Rolling"}, "strategy", "Rolling"),
        ({"maxUnavailable": "50%"}, "max_unavailable", "50%"),
        ({"maxUnavailable": 3}, "max_unavailable", 3),
        ({"maxFailures": 0}, "max_failures", 0),
        ({"maxFailures": "5%"}, "max_failures", "5%"),
        ({"onFailure": "Rollback"}, "on_failure", "Rollback"),
        ({"pause": {"mode": "Abort"}}, "pause.mode", "Abort"),
        ({"pause": {"drainTimeoutSeconds": 0}}, "pause.drain_timeout_seconds", 0),
        ({"timeouts": {"checkpointSeconds": 9}}, "timeouts.checkpoint_seconds", 9),
        ({"timeouts": {"stageSeconds": 1}}, "timeouts.stage_seconds", 1),
        ({"timeouts": {"pauseSeconds": 2}}, "timeouts.pause_seconds", 2),
        ({"timeouts": {"loadSeconds": 3}}, "timeouts.load_seconds", 3),
    ],
)
def test_a_version_overrides_only_the_fields_that_it_sets(
    overrides: dict[str, Any], place: str, value: Any
) -> None:
    fleet = Rollout.model_validate(
        {
            "maxFailures": 7,
            "pause": {"mode": "Wait", "drainTimeoutSeconds": 11},
            "timeouts": {"stageSeconds": 12, "pauseSeconds": 13, "loadSeconds": 14},
            "canary": {"workers": 2},
        }
    )
    changed = RolloutOverrides.model_validate(overrides).over(fleet).model_dump()
    expected = fleet.model_dump()
    *parents, last = place.split(".")
    functools.reduce(lambda found, part: found[part], parents, expected)[last] = value

    assert changed == expected


def test_a_version_without_overrides_changes_nothing() -> None:
    fleet = Rollout(max_failures=7)

    assert RolloutOverrides().over(fleet) == fleet


# --- what the resources take can be said to a worker --------------------------------------------

LABELS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)
CONTROLS = "".join(map(chr, (*range(32), 127)))
PARTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=f"/{CONTROLS}"), min_size=1
)
PLACES = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
SOURCES = st.builds(lambda path: {"path": path}, PLACES) | st.builds(
    lambda repo, revision: {"huggingFace": {"repo": repo, "revision": revision}},
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
)
ROLLOUTS = st.fixed_dictionaries(
    {
        "pause": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["Keep", "Wait", "Abort"]),
                "drainTimeoutSeconds": st.sampled_from([0, 1, DAY]),
            }
        ),
        "timeouts": st.fixed_dictionaries(
            {f"{phase}Seconds": st.sampled_from([1, DAY]) for phase in ("stage", "pause", "load")}
        ),
        "canary": st.fixed_dictionaries(
            {
                "prompts": st.sampled_from([[], ["a"], ["я" * 4000] * 32]),
                "maxTokens": st.sampled_from([1, 256]),
            }
        ),
    }
)
POD = PodView(name="policy-0", uid="u", ordinal=0, revision="r", ip="10.0.0.1")
REASONS = st.sampled_from(["because", "x" * 5000])


@settings(max_examples=25)
@given(LABELS, LABELS, SOURCES, ROLLOUTS, REASONS, st.integers(0, MAX_TERM))
def test_every_valid_resource_can_be_sent_to_a_worker(
    version: str, adapter: str, source: dict[str, Any], rollout: Any, reason: str, term: int
) -> None:
    spec = WeightsSpec.model_validate({**WEIGHTS, "version": version, "source": source})
    goal = Checkpoint(version=spec.version, source=WeightSource.model_validate(source))
    how = FleetSpec.model_validate({**FLEET, "rollout": rollout}).rollout
    worker = WorkerView(pod=POD)
    call: dict[str, Any] = {"pod_uid": "u", "pod_name": "policy-0", "reason": reason}
    asked: list[WorkerCall] = [
        worker_calls.stage(worker, goal, how, reason=reason),
        worker_calls.pause(worker, how, reason=reason),
        worker_calls.load(worker, goal, how, reason=reason),
        worker_calls.apply(worker, goal, how, reason=reason),
        worker_calls.resume(worker, reason=reason),
        worker_calls.admit(worker, reason=reason),
        worker_calls.fence_after_drain(worker, how, reason=reason),
        worker_calls.canary_prompts(worker, how, baseline=goal, reason=reason),
        PutLora(**call, version=version, adapter=adapter, source=goal.source, timeout_seconds=1.0),
        RemoveLora(**call, adapter=adapter),
    ]
    for action in asked:
        body = action.to_request(Epoch(term=term, sequence=0))
        assert action.path.startswith("/v1/worker/")
        assert type(body).model_validate_json(body.model_dump_json(by_alias=True)) == body
        assert action.answer_seconds > 0
