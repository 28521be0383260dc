"""A finding of ruff or mypy is suppressed only with a reason, on the same line.

mypy reads no test, so a test suppresses nothing of mypy.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "operator", "worker", "tools", "examples", "tests")
SUPPRESSES = re.compile(r"#\s*(noqa|type:\s*ignore)\b")
GIVES_A_REASON = re.compile(r"# (noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\]  # )\S.*")


def faults(source: str, *, is_test: bool) -> list[str]:
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    return [
        comment
        for comment in comments
        if SUPPRESSES.search(comment)
        and (not GIVES_A_REASON.fullmatch(comment) or (is_test and "type: ignore" in comment))
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_suppression_has_its_reason(folder: str) -> None:
    found = {
        str(file.relative_to(ROOT)): wrong
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (wrong := faults(file.read_text(), is_test=folder == "tests"))
    }

    assert found == {}


@pytest.mark.parametrize(
    ("comment", "is_test"),
    [
        ("# noqa: T201", False),
        ("# noqa", False),
        ("# type: ignore", False),
        ("# type: ignore[misc]", False),
        ("# noqa: ARG002 -", False),
        ("# type: ignore[misc]  #", False),
        ("# type: ignore[misc]  # no types", True),
    ],
)
def test_a_suppression_without_a_reason_is_found(comment: str, *, is_test: bool) -> None:
    assert faults(f"print()  {comment}\n", is_test=is_test) == [comment]


def test_a_suppression_with_a_reason_is_permitted() -> None:
    assert faults('print("# noqa: T201")  # noqa: T201 - it talks\n', is_test=False) == []
