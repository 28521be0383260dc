"""docs/reference/logs.md lists each field of a log line, and no others."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from fleet_worker.logs import json_formatter
from fleet_worker.protocol import PromptsReport

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/reference/logs.md"
SOURCES = (
    "operator/fleet_api",
    "operator/fleet_collector",
    "operator/fleet_operator",
    "worker/fleet_worker",
)
SPREAD = {"found.model_dump()": set(PromptsReport.model_fields)}
"""Fields that a call passes as a whole."""


def calls(*functions: str) -> Iterator[ast.Call]:
    """The calls of these functions in the product."""
    for source in SOURCES:
        for file in (REPOSITORY / source).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func).split(".")[-1] in functions
                ):
                    yield node


def calls_with_an_event() -> dict[ast.Call, str]:
    """The calls that make the fields of a line, and their events."""
    found = {}
    for call in calls("fields", "fleet_fields"):
        match call.args:
            case [ast.Constant(value=str(event)), *_]:
                found[call] = event
    return found


def written_fields() -> set[str]:
    found = {"event", "namespace", "fleet", "weightversion", "object", "pod"}
    for call in calls_with_an_event():
        for keyword in call.keywords:
            found |= {keyword.arg} if keyword.arg else SPREAD[ast.unparse(keyword.value)]
    return found


def documented(section: str) -> set[str]:
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_lists_each_field_that_the_code_writes():
    record = logging.LogRecord("x", logging.INFO, "f", 1, "x", (), (ValueError, ValueError(), None))
    always = re.findall(r'"(\w+)": ', json_formatter().format(record))

    assert documented("Fields of each line") == set(always)
    assert documented("Further fields") == written_fields()


def test_the_page_lists_each_event():
    assert documented("Events") == set(calls_with_an_event().values())


def test_no_log_line_has_a_field_past_the_schema():
    """`extra` with a dict of its own would miss the page."""
    logged = calls("debug", "info", "warning", "error", "exception", "log")
    extras = [k.value for call in logged for k in call.keywords if k.arg == "extra"]

    assert extras
    assert not [ast.unparse(extra) for extra in extras if isinstance(extra, ast.Dict)]
