"""The operator's core and the pure modules of the worker only decide: no clock, file, log or wait."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER_MODULES = next(
    contract["source_modules"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    if contract["id"] == "worker-decisions-are-pure"
)
FILES = [
    *sorted((ROOT / "operator/fleet_operator/core").rglob("*.py")),
    ROOT / "operator/fleet_operator/counts.py",
    *(ROOT / "worker" / f"{name.replace('.', '/')}.py" for name in WORKER_MODULES),
]

PURE_MODULES = frozenset(
    [
        "__future__",
        "base64",
        "codecs",
        "collections",
        "contextlib",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "struct",
        "typing",
    ]
)
"""Standard library that core may import. `datetime` for the type: its clocks are refused below."""
OURS = (
    "fleet_operator.api",
    "fleet_operator.core",
    "fleet_operator.counts",
    "fleet_worker.protocol",
    "rlfleet_resources",
    *WORKER_MODULES,
)
CLOCKS = frozenset({"now", "utcnow", "today", "fromtimestamp"})
BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})


def impurities(source: str) -> Iterator[str]:
    """The impure statements of a module, as `line: statement`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                found = [a.name for a in node.names if not _is_pure(a.name)]
            case ast.ImportFrom():
                names = [f"{node.module}.{a.name}" for a in node.names]
                found = [] if _is_pure(node.module or "") else [n for n in names if not _is_pure(n)]
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                found = [f"{name}()"]
            case ast.Attribute(attr=name) if name in CLOCKS:
                found = [f".{name}"]
            case ast.AsyncFunctionDef() | ast.Await() | ast.Global() | ast.Nonlocal():
                found = [type(node).__name__]
            case _:
                found = []
        yield from (f"{getattr(node, 'lineno', 0)}: {what}" for what in found)


def thawed(source: str) -> Iterator[str]:
    """Dataclasses that could be changed after they were made."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            made = [ast.unparse(d) for d in node.decorator_list]
            if any("dataclass" in m and "frozen=True" not in m for m in made):
                yield f"{node.lineno}: {node.name}"


def _is_pure(module: str) -> bool:
    ours = any(module == name or module.startswith(f"{name}.") for name in OURS)
    return ours or module.partition(".")[0] in PURE_MODULES


def test_modules_of_the_core_only_decide() -> None:
    found = [f"{file}:{what}" for file in FILES for what in impurities(file.read_text())]

    assert found == []


def test_records_of_the_core_are_frozen() -> None:
    found = [f"{file}:{what}" for file in FILES for what in thawed(file.read_text())]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from random import random",
        "from fleet_operator.runtime import main",
        "from fleet_worker import engine",
        "from fleet_worker import protocol, lifecycle",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "from datetime import date\ndate.today()",
        "open('file')",
        "print('said')",
        "async def wait(): ...",
        "def count():\n    global seen\n    seen = 1",
    ],
)
def test_impure_code_is_found(source: str) -> None:
    assert list(impurities(source)) != []


@pytest.mark.parametrize("decorator", ["dataclass", "dataclass(slots=True)"])
def test_a_record_that_can_change_is_found(decorator: str) -> None:
    assert list(thawed(f"@{decorator}\nclass Record: ...")) == ["2: Record"]
