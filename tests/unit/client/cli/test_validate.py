"""`rlfleet validate`: the dry run, and each rule of our own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cli import Recorded, golden, run

from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.errors import Forbidden, NotFound, Refused, RlfleetError, Unavailable

GROUP = "/apis/rlfleet.dev/v1alpha1/namespaces"
VERSION = "rlfleet.dev/v1alpha1"


class Cluster(Recorded):
    """A fleet and its base weights in namespace `rl`, and a dry run that takes everything."""

    def __init__(self) -> None:
        super().__init__("applied")
        self.found: list[Any] = [self.fleet, self.weights]
        self.refusals: dict[str, Exception] = {}
        for plural, kind in (
            ("inferencefleets", "InferenceFleet"),
            ("weightversions", "WeightVersion"),
        ):
            self.answers[f"GET {GROUP}/rl/{plural}"] = lambda *_, kind=kind: {
                "items": [one for one in self.found if one["kind"] == kind]
            }
            for name in ("policy", "other", "math", "code"):
                self.answers[f"PATCH {GROUP}/rl/{plural}/{name}"] = self._dry_run

    def _dry_run(self, params: dict[str, str], body: dict[str, Any] | None) -> Any:
        assert params["dryRun"] == "All"
        assert body is not None
        refusal = self.refusals.get(body["metadata"]["name"])
        if refusal is not None:
            raise refusal
        return body


def weights(name: str = "policy", **spec: Any) -> dict[str, Any]:
    given = {"fleetRef": {"name": "policy"}, "version": "3"}
    source = {"source": {"path": "/weights/step_{version}"}}
    body = {"apiVersion": VERSION, "kind": "WeightVersion", "metadata": {"name": name}}
    return body | {"spec": given | source | spec}


def fleet(name: str = "policy", **spec: Any) -> dict[str, Any]:
    model = {"name": "m", "source": {"path": "/models/base"}}
    gpu = {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}}
    given = {"model": model, "weights": {"roots": ["/weights"]}, "resources": gpu}
    body = {"apiVersion": VERSION, "kind": "InferenceFleet", "metadata": {"name": name}}
    return body | {"spec": given | spec}


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Write objects to a file and validate it: exit code, and the checks."""

    def check(cluster: Cluster, *objects: Any) -> tuple[int, list[dict[str, Any]]]:
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        code, out, _ = run(monkeypatch, cluster, "validate", str(file), "-o", "json")
        return code, json.loads(out)["items"]

    return check


def rules(checks: list[dict[str, Any]]) -> list[str]:
    return [one["rule"] for one in checks if one["result"] == "fail"]


def test_valid_manifests_pass(validate):
    code, checks = validate(Cluster(), fleet(), weights(), {"kind": "Service", "apiVersion": "v1"})

    assert code == 0
    assert [(one["result"], one["object"]) for one in checks if not one["rule"]] == [
        ("ok", "InferenceFleet rl/policy"), ("ok", "WeightVersion rl/policy"),
    ]  # fmt: skip
    assert {one["rule"] for one in checks} == {"", "RunMissing"}


def test_the_result_has_its_golden_text(monkeypatch, tmp_path):
    (tmp_path / "objects.yaml").write_text(
        yaml.safe_dump_all([fleet(), weights(), weights("other", source={"path": "/x"})])
    )
    monkeypatch.chdir(tmp_path)

    code, out, _ = run(monkeypatch, Cluster(), "validate", "objects.yaml")

    assert code == CHECKS_FAILED
    golden(out, "validate.txt")


def test_the_directory_of_the_model_is_always_allowed(validate):
    assert validate(Cluster(), weights(source={"path": "/models/base"}))[0] == 0


BROKEN: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "no fleet": ([weights(fleetRef={"name": "nowhere"})], "FleetNotFound", "nowhere"),
    "outside": (
        [weights(source={"path": "/other/{version}"})], "SourceOutsideRoots", "/other/3 is not below",
    ),
    "a store": (
        [weights(source={"uri": "s3://lab/{version}"})], "SourceOutsideRoots", "s3://lab/3 is not below",
    ),
    "beside": ([weights(source={"path": "/weights-2/3"})], "SourceOutsideRoots", "/weights-2/3"),
    "another version of other files": (
        [weights(version="2", source={"path": "/weights/new/{version}"})],
        "VersionReused", "/weights/step_2",
    ),
    "a second one": ([weights("other")], "SecondBaseVersion", "policy already controls the base"),
    "two adapters of one name": (
        [
            fleet(adapters={"max": 2}),
            weights("math", adapter="math"), weights("other", adapter="math"),
        ],
        "SecondAdapterVersion", "WeightVersion math",
    ),
    "no slot": (
        [fleet(adapters={"max": 1}), weights("math", adapter="math"), weights("code", adapter="code")],
        "NoRoomForAdapters", "room for 1 of the 2 adapters",
    ),
    "the base's name": (
        [fleet(adapters={"max": 1}), weights("math", adapter="m")], "InvalidSpec", "base model",
    ),
    "a trainer's fleet": (
        [fleet(weights={"roots": ["/weights"], "management": "External"}), weights()],
        "ExternallyManaged", "External",
    ),
    "no name": ([{"apiVersion": VERSION, "kind": "WeightVersion"}], "Invalid", "metadata.name"),
    "no such kind": (
        [{"apiVersion": VERSION, "kind": "Fleet", "metadata": {"name": "a"}}], "Invalid", "unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_named_with_its_object_and_its_remedy(validate, case):
    objects, rule, words = BROKEN[case]

    code, checks = validate(Cluster(), *copy.deepcopy(objects))

    assert code == CHECKS_FAILED
    assert rules(checks) == [rule]
    (broken,) = [one for one in checks if one["result"] == "fail"]
    assert words in broken["message"]
    assert broken["remedy"]
    assert broken["file"].endswith("objects.yaml")


def test_a_change_of_a_fleet_is_checked_against_its_weightversions(validate):
    objects = [fleet(weights={"roots": ["/elsewhere"]})]

    code, checks = validate(Cluster(), *objects)

    assert code == CHECKS_FAILED
    (broken,) = [one for one in checks if one["result"] == "fail"]
    assert broken["object"] == "InferenceFleet rl/policy"
    assert "WeightVersion policy: /weights/step_2" in broken["message"]


@pytest.mark.parametrize(
    ("path", "is_pinned_digest", "is_taken"),
    [
        ("/weights/new/2", True, True),
        ("/weights/step_2", False, False),
        ("/weights/step_2", True, True),
    ],
)
def test_a_digest_decides_whether_a_version_names_its_files(
    validate, path, is_pinned_digest, is_taken
):
    cluster = Cluster()
    (pinned,) = [pin for pin in cluster.fleet["status"]["pinned"] if pin["version"] == "2"]
    digest = pinned["digest"] if is_pinned_digest else f"sha256:{'0' * 64}"

    code, checks = validate(cluster, weights(version="2", source={"path": path}, digest=digest))

    assert (code == 0) is is_taken
    assert ("VersionReused" in [one["rule"] for one in checks]) is not is_taken


def test_a_version_may_name_the_commit_of_its_branch(validate):
    cluster = Cluster()
    (pin,) = [pin for pin in cluster.fleet["status"]["pinned"] if pin["version"] == "2"]
    branch = {"huggingFace": {"repo": "org/model", "revision": "main"}}
    pin |= {"source": branch, "commit": "a1b2"}
    at_commit = {"huggingFace": {"repo": "org/model", "revision": "a1b2"}}

    assert validate(cluster, weights(version="2", source=at_commit))[0] == 0
    other = {"huggingFace": {"repo": "org/model", "revision": "c3d4"}}
    assert validate(cluster, weights(version="2", source=other))[0] == CHECKS_FAILED


def test_a_version_of_an_adapter_is_compared_with_the_pins_of_that_adapter(validate):
    cluster = Cluster()
    pin = {"version": "3", "digest": f"sha256:{'1' * 64}", "source": {"path": "/weights/old"}}
    cluster.fleet["status"]["pinnedAdapters"] = [pin | {"adapter": "math"}]
    adapters = [weights("math", adapter="math"), weights("code", adapter="code")]

    code, checks = validate(cluster, fleet(adapters={"max": 2}), *adapters)

    assert code == CHECKS_FAILED
    (broken,) = [one for one in checks if one["result"] == "fail"]
    assert (broken["object"], broken["rule"]) == ("WeightVersion rl/math", "VersionReused")


NOT_TEXT = 'in body must be of type string: "integer"'
SKIPPED = "some validation rules were not checked because the object was invalid"


@pytest.mark.parametrize(
    ("said", "field", "is_unquoted"),
    [
        (f"invalid: [spec.version: {NOT_TEXT}, <nil>: Invalid value: null: {SKIPPED}]", "spec.version", True),
        ('invalid: spec.rollout.maxFailures: Invalid value: "x"', "spec.rollout.maxFailures", False),
        ('strict decoding error: unknown field "spec.fleetRef[0].name"', "spec.fleetRef", False),
        ('strict decoding error: unknown field "spec.verison"', "spec", False),
    ],
)  # fmt: skip
def test_a_refusal_of_the_api_server_gets_the_command_that_explains_the_field(
    validate, said, field, is_unquoted
):
    cluster = Cluster()
    cluster.refusals["policy"] = Refused("?", "BadRequest", said)

    _, (check, *_) = validate(cluster, weights())

    assert f"kubectl explain weightversions.{field} " in check["remedy"]
    assert ("quotes" in check["remedy"]) is is_unquoted
    assert "<nil>" not in check["message"]


@pytest.mark.parametrize(
    ("error", "result", "rule"),
    [
        (Refused("?", "Invalid", "spec.source: set exactly one"), "fail", "Invalid"),
        (RlfleetError("400: unknown field spec.colour"), "fail", "BadRequest"),
        (
            Unavailable("failed to create typed patch object (rl/policy): .spec.colour: no field"),
            "fail", "BadRequest",
        ),
        (NotFound('namespaces "rl" not found; check the name'), "fail", "NotFound"),
        (Forbidden("patch is forbidden; give patch"), "warn", "Forbidden"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else v,
)  # fmt: skip
def test_the_answer_of_a_dry_run_is_reported(validate, error, result, rule):
    cluster = Cluster()
    cluster.refusals["policy"] = error

    code, checks = validate(cluster, weights())

    own = [one for one in checks if one["rule"] != "RunMissing"]
    assert [(one["result"], one["rule"]) for one in own] == [(result, rule)]
    assert own[0]["remedy"]
    assert code == (CHECKS_FAILED if result == "fail" else 0)


def test_directories_lists_and_invalid_files_are_read(monkeypatch, tmp_path):
    listed = {"apiVersion": "v1", "kind": "List", "items": [fleet(), weights()]}
    (tmp_path / "a.json").write_text(json.dumps(listed))
    (tmp_path / "b.yaml").write_text("kind: [")
    (tmp_path / "c.yml").write_text("text")
    (tmp_path / "notes.txt").write_text("not read")

    code, out, _ = run(monkeypatch, Cluster(), "validate", str(tmp_path))

    assert code == CHECKS_FAILED
    lines = [line.split()[0] for line in out.splitlines()]
    assert lines == ["fail", "→", "fail", "→", "ok", "ok", "warn", "→"]


def test_files_without_our_resources_are_reported(monkeypatch, tmp_path):
    (tmp_path / "a.yaml").write_text("kind: Service\napiVersion: v1\n")

    code, _, err = run(monkeypatch, Cluster(), "validate", str(tmp_path))

    assert code == 6
    assert "no object of rlfleet.dev" in err


def test_without_an_answer_the_dry_run_ends(monkeypatch, tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(weights()))
    cluster = Cluster()
    cluster.refusals["policy"] = Unavailable("the API server does not answer")

    assert run(monkeypatch, cluster, "validate", str(tmp_path))[0] == 9


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(yaml.safe_dump(weights()).replace("'3'", "2026-01-01"), 0, id="a date"),
        pytest.param(
            yaml.safe_dump(weights()).replace("v1alpha1", "v1"), CHECKS_FAILED, id="a version"
        ),
        pytest.param(
            yaml.safe_dump(fleet() | {"status": 4}), 0, id="a status, which the API server ignores"
        ),
        pytest.param(
            yaml.safe_dump(weights() | {"metadata": {"name": "policy", "namespace": {"a": "b"}}}),
            CHECKS_FAILED,
            id="a namespace that is no text",
        ),
        pytest.param(
            yaml.safe_dump({"kind": "List", "items": 5}), CHECKS_FAILED, id="a List without a list"
        ),
    ],
)
def test_values_of_any_type_are_checked(monkeypatch, tmp_path, text, code):
    (tmp_path / "a.yaml").write_text(text)

    assert run(monkeypatch, Cluster(), "validate", str(tmp_path))[0] == code


def test_a_fleet_that_the_api_server_refuses_is_not_looked_into(monkeypatch, tmp_path):
    wrong = fleet()
    wrong["spec"]["model"]["source"] = "x"
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([wrong, weights()]))
    cluster = Cluster()
    message = "spec.model.source in body must be of type object"
    cluster.answers[f"PATCH {GROUP}/rl/inferencefleets/policy"] = Refused("?", "Invalid", message)

    code, out, _ = run(monkeypatch, cluster, "validate", str(tmp_path), "-o", "json")

    assert code == CHECKS_FAILED
    assert [c["rule"] for c in json.loads(out)["items"] if c["result"] == "fail"] == ["Invalid"]


def test_an_unknown_flag_of_the_engine_is_a_warning(validate):
    flags = fleet(engine={"args": ["--max-modl-len", "4096", "--dtype", "bfloat16"]})
    code, checks = validate(Cluster(), flags)

    assert code == 0
    assert [(one["result"], one["rule"]) for one in checks] == [("ok", ""), ("warn", "UnknownFlag")]
    assert "no flag --max-modl-len" in checks[1]["message"]
    assert "--max-model-len" in checks[1]["remedy"]


@pytest.mark.parametrize("engine", [7, {"args": 7}, {"args": [7, None]}])
def test_an_engine_of_another_shape_is_judged_by_the_api_server(validate, engine):
    assert validate(Cluster(), fleet(engine=engine))[0] == 0
