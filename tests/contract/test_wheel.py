"""Our wheel, installed as in an image: with the pinned libraries and without the repository."""

from __future__ import annotations

import ast
import configparser
import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.programs import written_by

import envs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = PROJECT["name"].replace("-", "_")
PACKAGES = {
    "fleet_api": ROOT / "operator",
    "fleet_collector": ROOT / "operator",
    "fleet_operator": ROOT / "operator",
    "fleet_worker": ROOT / "worker",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    written_by([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where our wheel and the client's are installed, as in the operator's image."""
    folder = tmp_path_factory.mktemp("installed")
    install = [envs._uv(), "pip", "install", "-q", "--offline", "--no-deps", "--no-cache"]
    python = envs.interpreter_of("operator")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "wheels"]
    written_by(build, cwd=ROOT / "client")
    (client,) = (folder / "wheels").glob("*.whl")
    subprocess.run([*install, "--python", python, "--target", folder, wheel, client], check=True)
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the operator's pinned libraries and the wheel, and no other variables."""
    python = envs.interpreter_of("operator")
    return subprocess.run(
        [python, "-P", *arguments],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_its_packages_whole_and_nothing_else(wheel: Path) -> None:
    expected = {
        file.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for pattern in ("*.py", "py.typed", "*.json")
        for file in (root / package).rglob(pattern)
    }
    folder = f"{NAME}-{PROJECT['version']}.dist-info/"

    assert {f for f in files(wheel) if not f.startswith(folder)} == expected
    assert {"fleet_operator/py.typed", "fleet_worker/py.typed"} <= expected
    assert f"{folder}licenses/LICENSE" in files(wheel)


@pytest.mark.parametrize(
    ("project", "packages"),
    [(".", {"crds", "operator", "worker"}), ("client", {"rlfleet", "rlfleet_resources"})],
    ids=["server", "client"],
)
def test_a_source_distribution_holds_its_packages_and_licence_and_nothing_else(
    tmp_path: Path, project: str, packages: set[str]
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    written_by(build, cwd=ROOT / project)
    (file,) = tmp_path.iterdir()
    with tarfile.open(file) as archive:
        names = {member.split("/")[1] for member in archive.getnames()}

    assert names == packages | {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{NAME}-{PROJECT['version']}.dist-info/{name}").decode()


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    fields = email.message_from_string(metadata(wheel, "METADATA"))

    assert (fields["Name"], fields["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert fields["License-Expression"] == PROJECT["license"]
    assert set(fields.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])


def entry_points(wheel: Path) -> Iterator[str]:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    for section in parser.sections():
        yield from parser[section].values()


def test_entry_points_name_what_the_wheel_holds(wheel: Path) -> None:
    points = list(entry_points(wheel))

    assert points
    for point in points:
        module, _, attribute = point.partition(":")
        with zipfile.ZipFile(wheel) as archive:
            tree = ast.parse(archive.read(f"{module.replace('.', '/')}.py"))
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        assert attribute in {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_operator_starts_from_the_wheel(installed: Path) -> None:
    done = run(installed, "-m", "fleet_operator", "--help")

    assert done.returncode == 0, done.stderr
    assert "usage: python -m fleet_operator" in done.stdout


def test_the_operator_without_a_cluster_ends_with_a_sentence(installed: Path) -> None:
    done = run(installed, "-m", "fleet_operator", "--log-format=text")

    assert done.returncode == 2, done.stderr
    assert "no cluster: there is neither a pod's service account nor a kubeconfig" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_rl_api_starts_from_the_wheels(installed: Path) -> None:
    done = run(installed, "-m", "fleet_api", "--help")

    assert done.returncode == 0, done.stderr
    assert "usage: python -m fleet_api" in done.stdout


def test_the_rl_api_without_a_cluster_ends_with_a_sentence(installed: Path) -> None:
    done = run(installed, "-m", "fleet_api", "--log-format=text")

    assert done.returncode == 2, done.stderr
    assert "cannot start: no cluster" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["--help"], ["serve", "--help"], ["drain", "--help"]])
def test_the_worker_starts_from_the_wheel(installed: Path, command: list[str]) -> None:
    done = run(installed, "-m", "fleet_worker", *command)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m fleet_worker")


@pytest.mark.parametrize("command", [["manifest", "/"], ["check", "/", "--against=/"]], ids=str)
def test_a_command_without_the_workers_libraries_says_what_to_install(
    installed: Path, command: list[str]
) -> None:
    done = run(installed, "-m", "fleet_worker", *command)

    assert done.returncode == 2, done.stderr
    assert re.search(r"module \w+ is missing: install rlfleet-server\[worker\]", done.stderr)


def test_every_library_that_the_operator_imports_is_pinned_for_its_image(installed: Path) -> None:
    imported = {
        name.partition(".")[0]
        for package in (
            "fleet_api",
            "fleet_collector",
            "fleet_operator",
            "rlfleet",
            "rlfleet_resources",
        )
        for file in (installed / package).rglob("*.py")
        # These need other libraries.
        if not {"cli", "deltas"} & {*file.parts} and file.name != "callback.py"
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    libraries = (
        imported - sys.stdlib_module_names - PACKAGES.keys() - {"rlfleet", "rlfleet_resources"}
    )
    code = f"import {', '.join(sorted(libraries))}"

    assert "kopf" in libraries
    assert run(installed, "-c", code).returncode == 0
