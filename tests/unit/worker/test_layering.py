"""The architecture, as imports: `core` decides, `runtime` runs, `adapters` talk."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet_worker

PACKAGE = Path(fleet_worker.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
SHARED = "fleet_worker.drain_names"
ENGINE = {"vllm", "torch", "transformers", "safetensors"}


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def inner(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", FILES, ids=inner)
def test_only_adapters_import_the_engine(file: Path) -> None:
    found = {name.partition(".")[0] for name in imports_of(file)} & ENGINE

    assert not found or file.parent.name == "adapters"


@pytest.mark.parametrize("file", sorted((PACKAGE / "core").glob("*.py")), ids=inner)
def test_core_imports_the_standard_library_and_the_protocol_only(file: Path) -> None:
    for name in imports_of(file):
        root = name.partition(".")[0]
        ours = name.startswith(("fleet_worker.protocol", "fleet_worker.core"))
        assert ours or root in sys.stdlib_module_names, name


@pytest.mark.parametrize("file", sorted((PACKAGE / "core").glob("*.py")), ids=inner)
def test_core_has_no_clock_no_files_no_chance_and_no_log(file: Path) -> None:
    forbidden = {"time", "datetime", "random", "os", "pathlib", "logging", "asyncio", "uuid"}

    assert not {name.partition(".")[0] for name in imports_of(file)} & forbidden


def test_the_protocol_stands_alone() -> None:
    names = {name for file in (PACKAGE / "protocol").glob("*.py") for name in imports_of(file)}
    ours = {name for name in names if name.startswith("fleet_worker")}

    assert len(names) > 5
    assert all(name.startswith("fleet_worker.protocol") for name in ours - {SHARED})


@pytest.mark.parametrize("file", sorted((PACKAGE / "audit").glob("*.py")), ids=inner)
def test_the_audit_shares_nothing_with_what_it_audits(file: Path) -> None:
    for name in imports_of(file):
        if name.startswith("fleet_worker"):
            # Digests are computed as documented, by the command that documents them.
            shared = ("fleet_worker.adapters.teacher", "fleet_worker.runtime.manifest")
            assert name.startswith(("fleet_worker.audit", *shared)), name


@pytest.mark.parametrize("file", FILES, ids=inner)
def test_nothing_unpickles(file: Path) -> None:
    pickles = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}

    assert not {name.partition(".")[0] for name in imports_of(file)} & pickles
    assert "torch.load" not in file.read_text()


@pytest.mark.parametrize(
    "module", ["fleet_worker.protocol", "fleet_worker.runtime.drain", "fleet_worker.__main__"]
)
def test_a_light_module_imports_nothing_heavy(module: str) -> None:
    heavy = sorted({*ENGINE, "httpx", "prometheus_client", "uvicorn", "asyncio"})
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )

    assert done.stdout.strip() == "[]"


def test_the_hook_that_ends_a_worker_imports_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import fleet_worker.__main__,"
        " fleet_worker.runtime.drain; print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}

    assert "fleet_worker" in loaded
    assert loaded - {"fleet_worker"} <= set(sys.stdlib_module_names)
