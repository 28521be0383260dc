"""The tables of the chart's values, from the comments in values.yaml and the defaults.

One is on a reference page, the other at the end of the chart's README.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

_KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(.*)$")
_COMMENT = re.compile(r"^ *# ?(.*)$")
_MARK = "-- "
_HEAD = "| Value | Default | Meaning |\n| --- | --- | --- |\n"


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path, its default, and the comment above it (empty without one)."""

    path: str
    default: Any
    meaning: str


def values_page(text: str, notice: str) -> str:
    """The page of a values.yaml."""
    return (
        f"# Values of the chart\n\n{notice}"
        "`helm show values charts/rlfleet` prints the same file. The chart's schema refuses "
        f"values that it does not know.\n\n{values_table(text)}"
    )


def readme_with_values(readme: str, text: str) -> str:
    """The chart's README with the table of a values.yaml, which is its end."""
    before, head, _ = readme.partition(_HEAD)
    if not head:
        before = readme.rstrip("\n") + "\n\n"
    return before + values_table(text)


def values_table(text: str) -> str:
    """The table of a values.yaml."""
    lines = [_HEAD]
    for value in read_values(text):
        shown = json.dumps(value.default, ensure_ascii=False).replace("|", "\\|")
        meaning = value.meaning.replace("|", "\\|")
        lines.append(f"| `{value.path}` | `{shown}` | {meaning} |\n")
    return "".join(lines)


def read_values(text: str) -> Iterator[Value]:
    """Yield the values of a values.yaml in its order.

    A map is one value if its keys have no comments of their own and the map has one, or if it is
    written on one line. Else each of its keys is one.
    """
    tree = yaml.safe_load(text)
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    whole: str | None = None
    for line in text.splitlines():
        if found := _COMMENT.match(line):
            comment.append(found[1])
            continue
        key = _KEY.match(line)
        if key is None:
            comment = []
            continue
        depth, name = len(key[1]), key[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        stack.append((depth, name))
        path = ".".join(part for _, part in stack)
        if whole is not None and path.startswith(f"{whole}."):
            comment = []
            continue
        whole = None
        about = _meaning(comment)
        comment = []
        default = _at(tree, path)
        if isinstance(default, dict) and default and not key[3].strip():
            if about is None:
                continue
            whole = path
        yield Value(path, default, about or "")


def _meaning(comment: list[str]) -> str | None:
    """The text of a comment that begins with `--`; None without one."""
    begin = next((n for n, line in enumerate(comment) if line.startswith(_MARK)), None)
    if begin is None:
        return None
    return " ".join([comment[begin].removeprefix(_MARK), *comment[begin + 1 :]]).strip()


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree
