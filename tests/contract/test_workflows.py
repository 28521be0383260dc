"""The workflows of the repository run what the Makefile runs, with pinned actions and few rights."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.programs import written_by

from images.build import PACKAGES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["jobs"]
    return found


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(file).values() for step in job["steps"]]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_action_is_pinned_to_a_commit(file: Path) -> None:
    used = [step["uses"] for step in steps(file) if "uses" in step]

    assert used
    assert [u for u in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", u)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_job_lists_its_rights_and_has_a_time_limit(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["permissions"] == {}
    for name, job in jobs(file).items():
        assert "permissions" in job, name
        assert job["timeout-minutes"] > 0, name


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_no_script_holds_an_expression_that_a_shell_would_run(file: Path) -> None:
    assert [step["run"] for step in steps(file) if "${{" in step.get("run", "")] == []


def test_ci_runs_the_command_that_ci_runs_elsewhere() -> None:
    scripts = [step.get("run", "") for step in steps(ROOT / ".github/workflows/ci.yml")]

    assert any(script.endswith(".ci/run") for script in scripts)
    assert (ROOT / ".ci/run").exists()


@pytest.mark.parametrize(
    "python", ['exec /usr/bin/python3 "$@"', "exit 1"], ids=["with Python", "without"]
)
def test_ci_says_first_which_processor_it_runs_on(tmp_path: Path, python: str) -> None:
    for name, line in (("make", "echo make $@"), ("python3", python)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    first, *rest = written_by([ROOT / ".ci/run"], env=environment).splitlines()

    assert first.startswith("processor: ")
    assert rest == ["make test"]


def test_a_release_is_built_on_a_base_that_is_named_by_its_digest(tmp_path: Path) -> None:
    scripts = [s["run"] for s in steps(ROOT / ".github/workflows/release.yml") if "run" in s]
    (check,) = (script for script in scripts if "@sha256" in script)
    (build,) = (script for script in scripts if "make release" in script)

    def passes(image: str) -> bool:
        environment = os.environ | {"PYTHON_IMAGE": image}
        return subprocess.run(("bash", "-c", check), env=environment, check=False).returncode == 0

    assert scripts.index(check) < scripts.index(build)
    assert 'PYTHON_IMAGE="$PYTHON_IMAGE"' in build
    assert passes("docker.io/library/python@sha256:" + "4" * 64)
    for moving in ("", "python:3.11-slim", "python@sha256:4"):
        assert not passes(moving)


def test_a_release_without_a_runner_that_has_room_fails_first_and_names_the_variable() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    (check,) = (s["run"] for s in release["versions"]["steps"] if "RUNNER" in str(s.get("env")))

    def checked(runner: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"RUNNER": runner}
        run = ("bash", "-c", check)
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=False)

    assert checked("large").returncode == 0
    assert checked("").returncode == 1
    assert "RELEASE_RUNNER" in checked("").stdout
    assert release["files"]["needs"] == "versions"


def test_each_night_the_long_tests_run_too() -> None:
    nightly = ROOT / ".github/workflows/nightly.yml"
    scripts = [step.get("run", "") for step in steps(nightly)]

    assert any(script.endswith(" LONG=1 .ci/run") for script in scripts)
    # PyYAML reads the key `on` as True.
    assert "schedule" in yaml.safe_load(nightly.read_text())[True]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_job_that_builds_programs_in_go_installs_the_go_that_they_need(file: Path) -> None:
    needed = max(
        tuple(map(int, re.findall(r"^go (\d+)\.(\d+)", module.read_text(), re.MULTILINE)[0]))
        for module in (ROOT / "tools").rglob("go.mod")
    )
    for name, job in jobs(file).items():
        if any(re.search(r"sudo .*(make|\.ci/)", step.get("run", "")) for step in job["steps"]):
            (go,) = (s for s in job["steps"] if s.get("uses", "").startswith("actions/setup-go@"))
            assert tuple(map(int, go["with"]["go-version"].split("."))) >= needed, name


def test_the_sums_of_a_release_verify_what_its_page_has(tmp_path: Path) -> None:
    (publish,) = (
        step["run"]
        for step in steps(ROOT / ".github/workflows/release.yml")
        if "gh release create" in step.get("run", "")
    )
    files = ("python/a.whl", "chart/a.tgz", "chart/oci/index.json", "sbom/a.json", "a.tar.gz")
    files += ("install.yaml", "provenance.json", "images/a.tar")
    for name in files:
        file = tmp_path / "dist" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    sums = written_by(["sha256sum", *files], cwd=tmp_path / "dist")
    (tmp_path / "dist/SHA256SUMS").write_text(sums)
    (tmp_path / "page").mkdir()
    (tmp_path / "gh").write_text(
        '#!/bin/bash\nfor word; do [[ ! -f $word ]] || cp "$word" ../page; done\n'
    )
    (tmp_path / "gh").chmod(0o755)
    names = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": "v1"}
    environment = os.environ | names | {"GITHUB_REPOSITORY": "owner/name"}
    written_by(["bash", "-euc", publish], cwd=tmp_path, env=environment)

    checked = ["sha256sum", "--check", "--ignore-missing", "SHA256SUMS"]
    verified = written_by(checked, cwd=tmp_path / "page").splitlines()
    expected = {Path(name).name for name in files} - {"index.json"}
    assert {line.removesuffix(": OK") for line in verified} == expected


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_root_finds_the_programs_that_earlier_steps_installed(file: Path) -> None:
    """sudo replaces the search path, even with --preserve-env=PATH."""
    ours = [
        r for step in steps(file) if re.search(r"sudo .*(make|\.ci/)", r := step.get("run", ""))
    ]

    assert [script for script in ours if 'sudo env "PATH=$PATH"' not in script] == []


def test_the_release_publishes_the_files_of_make_release() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    (made,) = (s["run"] for s in release["files"]["steps"] if "make release" in s.get("run", ""))
    (pushed,) = (s["run"] for s in release["files"]["steps"] if " cp " in s.get("run", ""))
    (images,) = (s["run"] for s in release["files"]["steps"] if "skopeo copy" in s.get("run", ""))
    (index,) = (s for s in release["pypi"]["steps"] if "pypi-publish" in s.get("uses", ""))

    assert all(word in made for word in ("VERSION=", "REPOSITORY=", "REGISTRY="))
    assert {*re.findall(r"IMAGES=(\S+)", made)[0].split(",")} == PACKAGES.keys()
    assert "oci-archive:$archive" in images
    assert [job for job, its in release.items() if "buildah build" in str(its)] == []
    assert "dist/chart/oci:" in pushed
    assert index["with"]["packages-dir"] == "dist/python"
    assert [job for job, its in release.items() if "hatchling" in str(its)] == []
