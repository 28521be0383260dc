"""The tree is what CONTRIBUTING.md says it is, and stays readable."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.programs import written_by

ROOT = Path(__file__).parents[2]
TOP = frozenset(
    [
        ".ci",
        ".devcontainer",
        ".dockerignore",
        ".github",
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Dockerfile",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "charts",
        "client",
        "crds",
        "docs",
        "examples",
        "operator",
        "pyproject.toml",
        "requirements",
        "tests",
        "tools",
        "worker",
    ]
)
SOURCE_ROOTS = ("client", "operator", "worker")
LATER = frozenset({"bench"})
"""Entries that the design names and that come with what fills them."""
TIERS = frozenset(
    ["bench", "clients", "cluster", "contract", "e2e", "engine", "gpu", "model", "support", "unit"]
)
MEDIAN_LINES = 150

# Brackets keep the pattern from finding itself.
OF_ONE_PLACE = re.compile(
    r"""
    python[h]osted | py[p]i\.org | registry\.npm[j]s | proxy\.go[l]ang | sum\.go[l]ang
    | gh[c]r\.io | qu[a]y\.io | /work/(?:sh[a]red|m[a]in)
    """,
    re.VERBOSE,
)


def tracked() -> list[Path]:
    """Every file of the repository, as git has it."""
    names = written_by(["git", "ls-files", "-z"], cwd=ROOT).split("\0")
    files = (ROOT / name for name in names if name)
    return [file for file in files if file.exists()]


def sources() -> list[Path]:
    return [f for root in SOURCE_ROOTS for f in sorted((ROOT / root).rglob("*.py"))]


def test_the_top_level_holds_what_was_agreed_and_nothing_else() -> None:
    entries = {file.relative_to(ROOT).parts[0] for file in tracked()}

    assert TOP <= entries <= TOP | LATER


def test_the_tiers_of_tests_are_the_named_ones() -> None:
    below = (f.relative_to(ROOT).parts for f in tracked() if f.is_relative_to(ROOT / "tests"))
    folders = {parts[1] for parts in below if len(parts) > 2}

    assert folders <= TIERS


@pytest.mark.parametrize(
    "shadow", [f"{root}{end}" for root in SOURCE_ROOTS for end in ("/__init__.py", ".py")]
)
def test_no_file_makes_a_source_root_a_package(shadow: str) -> None:
    assert not (ROOT / shadow).exists()


def test_no_folder_of_tests_is_a_package_named_like_the_standard_library() -> None:
    packages = {f.parent.name for f in (ROOT / "tests").rglob("__init__.py")}

    assert not packages & sys.stdlib_module_names


def test_source_roots_hold_no_loose_modules() -> None:
    assert [f for root in SOURCE_ROOTS for f in (ROOT / root).glob("*.py")] == []


def test_the_standard_library_is_found_from_the_top_level() -> None:
    code = "import operator, collections, kopf; print(operator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(ROOT)


def test_a_test_shows_what_a_failed_program_wrote() -> None:
    """An error of `check=True` has no captured text; `tests.support.programs` shows it."""
    found = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                given = {each.arg for each in node.keywords if ast.unparse(each.value) == "True"}
                if {"capture_output", "check"} <= given:
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")

    assert found == []


def test_most_source_files_are_a_few_screens() -> None:
    lengths = [len(f.read_text().splitlines()) for f in sources() if f.name != "__init__.py"]

    assert statistics.median(lengths) <= MEDIAN_LINES


def test_a_module_begins_by_saying_what_it_is_for() -> None:
    assert [f for f in sources() if not f.read_text().startswith(('"""', 'r"""'))] == []


def test_no_file_names_a_registry_of_packages_or_the_place_where_it_was_written() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in tracked()
        for match in OF_ONE_PLACE.finditer(file.read_text(errors="replace"))
    ]

    assert found == []


@pytest.mark.parametrize(
    "text", ["https://files.python" + "hosted.org/x", "pull gh" + "cr.io/x", "/work/" + "shared/x"]
)
def test_a_registry_or_a_local_path_is_found(text: str) -> None:
    assert OF_ONE_PLACE.search(text)


def test_pins_hold_no_addresses() -> None:
    assert [f for f in (ROOT / "requirements").glob("*.txt") if "://" in f.read_text()] == []


@pytest.mark.parametrize(
    "name",
    [
        "dev",
        "operator",
        "worker",
        "worker-cuda",
        "clients",
        "clients-legacy",
        "trainers",
        "lua",
        "docs",
        "dashboards",
    ],
)
def test_every_pin_has_a_hash(name: str) -> None:
    requirements = (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", " ")
    pins = [line for line in requirements.splitlines() if re.match(r"[a-z0-9]", line)]

    assert pins
    assert [p for p in pins if "==" not in p or "--hash=sha256:" not in p] == []
