"""Imports that the worker never makes, and that its light commands must avoid."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.programs import written_by

import fleet_worker

PACKAGE = Path(fleet_worker.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ENGINE = {"vllm", "torch", "transformers", "safetensors"}


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_module_unpickles() -> None:
    pickles = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
    for file in FILES:
        assert not {name.partition(".")[0] for name in imports_of(file)} & pickles, file
        assert "torch.load" not in file.read_text(), file


@pytest.mark.parametrize(
    "module", ["fleet_worker.protocol", "fleet_worker.process.drain", "fleet_worker.__main__"]
)
def test_a_light_module_imports_no_heavy_package(module: str) -> None:
    heavy = sorted({*ENGINE, "httpx", "prometheus_client", "uvicorn", "asyncio"})
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    printed = written_by([sys.executable, "-c", code])

    assert printed.strip() == "[]"


def test_the_prestop_hook_imports_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import fleet_worker.__main__,"
        " fleet_worker.process.drain; print(*(set(sys.modules) - before))"
    )
    loaded = {name.partition(".")[0] for name in written_by([sys.executable, "-c", code]).split()}

    assert "fleet_worker" in loaded
    assert loaded - {"fleet_worker"} <= set(sys.stdlib_module_names)
