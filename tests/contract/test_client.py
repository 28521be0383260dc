"""The client as trainers install it, and its fields and words against what the cluster has."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from tests.contract.test_crd_equals_models import crd_schema, leaves, model_schema
from tests.support.programs import written_by

import envs
import rlfleet
from rlfleet import patches, resources, rollout, sources

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
SERVER = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    written_by(command, cwd=CLIENT)
    (built,) = folder.glob("*.whl")
    return built


def run(wheel: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel, what it needs, and nothing else of the repository."""
    install = [envs._uv(), "pip", "install", "-q", "--offline", "--no-deps", "--no-cache"]
    python = envs.interpreter_of("dev")
    subprocess.run([*install, "--python", python, "--target", folder, wheel], check=True)
    return subprocess.run(
        [python, "-P", "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {f for f in archive.namelist() if ".dist-info/" not in f}
    package = (f.relative_to(CLIENT) for f in CLIENT.glob("rlfleet*/**/*") if f.is_file())

    assert files == {f.as_posix() for f in package if f.suffix != ".pyc"}
    assert "rlfleet/py.typed" in files


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheel's programs."""
    folder = tmp_path_factory.mktemp("installed")
    install = [envs._uv(), "pip", "install", "-q", "--offline", "--no-deps", "--no-cache"]
    python = envs.interpreter_of("dev")
    subprocess.run([*install, "--python", python, "--target", folder, wheel], check=True)
    return folder / "bin"


def shell(programs: Path, command: str) -> str:
    """The output of a command of bash that has the wheel's programs and nothing of the repository."""
    variables = {"PYTHONPATH": str(programs.parent), "PATH": f"{programs}:{os.environ['PATH']}"}
    environment = variables | {"HOME": str(programs)}
    return written_by(["bash", "-c", command], cwd=programs, env=environment, timeout=60)


@pytest.mark.parametrize("program", ["rlfleet", "kubectl-rlfleet"])
def test_a_program_of_the_wheel_prints_its_release(programs: Path, program: str) -> None:
    """kubectl runs `kubectl-rlfleet` with the arguments after `kubectl rlfleet`."""
    assert shell(programs, f"{program} --version") == f"rlfleet {PROJECT['version']}\n"


def test_bash_completes_verbs_with_the_printed_script(programs: Path) -> None:
    line = "COMP_LINE='rlfleet wat' COMP_POINT=11 COMP_WORDS=(rlfleet wat) COMP_CWORD=1"
    words = f"{line}; _rlfleet_completion rlfleet"

    found = shell(programs, f'source <(rlfleet completion bash); {words}; echo "${{COMPREPLY[@]}}"')

    assert found == "watch\n"


def test_the_two_distributions_have_two_names_and_one_version() -> None:
    assert (PROJECT["name"], SERVER["name"]) == ("rlfleet", "rlfleet-server")
    assert PROJECT["version"] == SERVER["version"]
    assert PROJECT["requires-python"] == SERVER["requires-python"]
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_client_needs_three_libraries() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {
        "httpx",
        "pydantic",
        "pyyaml",
    }


def test_importing_the_client_loads_nothing_heavy(wheel: Path, tmp_path: Path) -> None:
    done = run(
        wheel, tmp_path, "import rlfleet, sys; print(*{m.split('.')[0] for m in sys.modules})"
    )

    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "rlfleet" in loaded
    assert not loaded & {
        "aiohttp", "fleet_operator", "fleet_worker", "kopf", "kubernetes", "torch", "transformers",
    }  # fmt: skip


def test_without_a_cluster_the_client_ends_with_a_sentence(wheel: Path, tmp_path: Path) -> None:
    done = run(wheel, tmp_path, "import rlfleet; rlfleet.Weights('policy')")

    assert "rlfleet.errors.NotConfigured: no cluster: " in done.stderr


# --- the words of the cluster ---------------------------------------------------------------------

PAIRS = [
    pytest.param("weightversions", "spec", resources.WeightsSpec, id="weights spec"),
    pytest.param("inferencefleets", "spec", resources.FleetSpec, id="fleet spec"),
]


@pytest.mark.parametrize(("plural", "part", "model"), PAIRS)
def test_every_field_of_the_client_is_one_of_the_crd_with_its_type(
    plural: str, part: str, model: Any
) -> None:
    crd = leaves(crd_schema(plural)["properties"][part])
    client = leaves(model_schema(model))

    assert {p: f["type"] for p, f in client.items()} == {
        p: crd[p]["type"] if p in crd else "not in the CRD" for p in client
    }


def test_the_client_knows_what_is_new_in_the_spec_of_a_weight_version() -> None:
    """Fields that it leaves out on purpose are listed here."""
    crd = set(crd_schema("weightversions")["properties"]["spec"]["properties"])
    fields = resources.WeightsSpec.model_fields.values()

    assert crd - {"rollout", "retention"} == {field.alias for field in fields}


def test_a_reason_of_a_later_release_stalls_a_rollout_too() -> None:
    stalled = {
        "type": "Stalled", "status": "True", "reason": "NewTrouble", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    spec = {"fleetRef": {"name": "policy"}, "version": "1", "source": {"s3": {"bucket": "b"}}}
    seen = resources.WeightVersion.model_validate(
        {"metadata": {"name": "policy"}, "spec": spec, "status": {"conditions": [stalled]}}
    )

    found = rollout.trouble_of(seen)
    assert found is not None
    assert (found.reason, str(found.reason)) == ("NewTrouble", "NewTrouble")
    assert str(seen.spec.source) == "a source that this release of rlfleet does not know"


@pytest.mark.parametrize(
    ("status", "odd"),
    [
        pytest.param("versions", {"version": ["8"]}, id="a served version"),
        pytest.param("pinned", {"version": "8", "digests": []}, id="a pin"),
        pytest.param("pinnedAdapters", "8", id="a pin of an adapter"),
        pytest.param("laggards", {"worker": "policy-0"}, id="a lagging worker"),
        pytest.param("conditions", {"type": "Ready", "status": "Perhaps"}, id="a condition"),
    ],
)
def test_an_entry_of_a_later_release_hides_no_other_one(status: str, odd: object) -> None:
    known = {
        "version": "7",
        "workers": 1,
        "digest": f"sha256:{64 * '0'}",
        "source": {"path": "/w"},
        "adapter": "a",
    }
    known |= {"pod": "policy-1", "state": "joining", "reason": "Joining", "type": "Ready"}
    known |= {"status": "True", "message": "", "observedGeneration": 1}
    known |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    if status != "conditions":
        del known["status"]
    fleet = {"metadata": {"name": "policy"}, "status": {status: [odd, known]}}
    read = resources.InferenceFleet.model_validate(fleet).status
    (field,) = (n for n, f in type(read).model_fields.items() if f.alias == status)

    assert len(getattr(read, field)) == 1


def test_an_object_of_the_client_is_one_that_the_crd_takes() -> None:
    sample = yaml.safe_load((ROOT / "crds/samples/valid/weights-path-template.yaml").read_text())
    made = patches.manifest(
        "policy", "policy", sources.Publication(version="43", path="/weights/43")
    )

    assert made.keys() == sample.keys()
    assert made["spec"]["source"] == {"path": "/weights/43"}
    assert rlfleet.WeightVersion.model_validate(sample).spec.source.is_template
