"""Both cores decide and do nothing else: no clock, no chance, no file, no log, no waiting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORES = [ROOT / "operator/fleet_operator/core", ROOT / "worker/fleet_worker/core"]
FILES = [file for core in CORES for file in sorted(core.rglob("*.py"))]

PURE_MODULES = frozenset(
    [
        "__future__",
        "base64",
        "codecs",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "math",
        "re",
        "statistics",
        "struct",
        "typing",
    ]
)
"""Of the standard library. `datetime` for the type: its clocks are refused below."""
OURS = ("fleet_operator.api", "fleet_operator.core", "fleet_worker.core", "fleet_worker.protocol")
CLOCKS = frozenset({"now", "utcnow", "today", "fromtimestamp"})
BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})


def impurities(source: str) -> Iterator[str]:
    """What a module does beside deciding, as `line: what`."""
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


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_a_core_module_only_decides(file: Path) -> None:
    assert list(impurities(file.read_text())) == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_records_of_the_core_are_frozen(file: Path) -> None:
    assert list(thawed(file.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from random import random",
        "from fleet_operator.runtime import main",
        "from fleet_worker import adapters",
        "from fleet_worker import protocol, runtime",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "from datetime import date\ndate.today()",
        "open('file')",
        "print('said')",
        "async def wait(): ...",
        "def count():\n    global seen\n    seen = 1",
    ],
)
def test_what_is_not_pure_is_found(source: str) -> None:
    assert list(impurities(source)) != []


@pytest.mark.parametrize("decorator", ["dataclass", "dataclass(slots=True)"])
def test_a_record_that_can_change_is_found(decorator: str) -> None:
    assert list(thawed(f"@{decorator}\nclass Record: ...")) == ["2: Record"]
