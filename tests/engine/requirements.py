"""The requirements of the wire contract, and which tests hold them.

An id stands for a rule that reviewers of trainers' and engines' interfaces insisted upon; the rules
are told in docs/reference/wire.md. A test holds a rule if its name begins with the id:
`test_tk_3_…` holds TK-3.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

DATA = (
    *(f"TK-{number}" for number in range(1, 16)),
    *(f"RF-{number}" for number in range(1, 7)),
    *(f"TZ-{number}" for number in range(1, 11)),
    "PM-1",
    "SE-3",
)
"""Rules of the public port."""

CONTROL = (
    *(f"ST-{number}" for number in (1, 2, 3, 4, 6)),
    *(f"PA-{number}" for number in range(1, 6)),
    *(f"WU-{number}" for number in range(1, 9)),
    *(f"LO-{number}" for number in range(1, 9)),
    "SE-1",
    "SE-2",
    "SE-4",
    "DI-1",
    "DI-2",
    "DI-4",
)
"""Rules of the admin port. ST-5 is a rule of fleets, DI-3 one of clients."""

_TESTS = Path(__file__).resolve().parent
_FOLDERS = (_TESTS, _TESTS.parent / "clients")
_NAME = re.compile(r"test_((?:[a-z]{2}_\d+_)+)")
_ID = re.compile(r"([a-z]{2})_(\d+)_")


def covered() -> dict[str, list[str]]:
    """Id → tests whose names begin with it, as `file::test`."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(f for folder in _FOLDERS for f in folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (name := _NAME.match(node.name)) is None:
                continue
            for kind, number in _ID.findall(name.group(1)):
                found[f"{kind.upper()}-{number}"].append(f"{file.name}::{node.name}")
    return dict(found)
