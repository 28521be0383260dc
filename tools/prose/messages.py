"""Messages in the code and the names of tests, as texts that Vale can check.

Vale reads comments and docstrings of a Python file. Here each message becomes a paragraph of a text, and
each name of a test another, with the rules of words that `vale-messages.ini` names.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prose import vale

CONFIG = vale.CONFIG.with_name("vale-messages.ini")
CODE = ("operator", "worker", "client", "tools")
"""Folders, from the repository's root, whose strings are messages: errors, log lines, conditions, help."""
TESTS = ("tests",)
MIN_SPACES = 3
"""A string with fewer is a key, a name or a part of a sentence."""
DATA = frozenset({"DEFAULT_PROMPTS"})
"""Constants whose strings are data."""
_VALUE = "X"
"""It is written for code and for values that are known at run time."""
_CODE = re.compile(r"`[^`]*`|\b\w+(?:\.\w+)+")
_MARKUP = re.compile(r"[`~<>*_#|\[\]\\]")
_TEST = re.compile(r"^[ \t]*(?:async )?def test_(\w+)", re.MULTILINE)

Texts = Iterator[tuple[int, str]]
"""Lines and the texts that begin there."""


def messages(source: str) -> Texts:
    """The messages in the code of a module, without its docstrings."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        todo += _parts_of(node)
        if isinstance(node, ast.Constant | ast.JoinedStr):
            text = _text_of(node)
            if text.count(" ") >= MIN_SPACES:
                yield node.lineno, _plain(text)


def names(source: str) -> Texts:
    """The names of the tests of a module, as sentences."""
    for found in _TEST.finditer(source):
        yield source.count("\n", 0, found.start(1)) + 1, found[1].replace("_", " ")


def check(folder: Path = vale.REPOSITORY) -> list[str]:
    """The findings in messages and names of tests, a finding a line.

    Errors:
        BuildError: Vale cannot be built.
        RuntimeError: Vale cannot read its rules.
    """
    texts = {
        "messages.md": _found(folder, CODE, messages),
        "names.md": _found(folder, TESTS, names),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, found in texts.items():
            (Path(scratch) / name).write_text("".join(f"{text}\n\n" for text in found))
        done = vale.run(*texts, folder=Path(scratch), output="JSON", config=CONFIG)
    if done.returncode not in {0, 1}:
        raise RuntimeError(done.stderr or done.stdout)
    findings = []
    for name, alerts in json.loads(done.stdout).items():
        paragraphs = list(texts[Path(name).name].items())
        for alert in alerts:
            text, places = paragraphs[(alert["Line"] - 1) // 2]
            why = f"{alert['Check']}: {alert['Message']} In: {text}"
            findings += [f"{place}: {why}" for place in places]
    return sorted(findings)


def _found(folder: Path, tops: Iterable[str], read: Callable[[str], Texts]) -> dict[str, list[str]]:
    """Text → the places that have it, as `file:line`."""
    found: dict[str, list[str]] = {}
    for file in (file for top in tops for file in sorted((folder / top).rglob("*.py"))):
        for line, text in read(file.read_text()):
            found.setdefault(text, []).append(f"{file.relative_to(folder)}:{line}")
    return found


def _text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """The text of a string; empty for another constant."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(v.value) if isinstance(v, ast.Constant) else _VALUE for v in node.values)


def _parts_of(node: ast.AST) -> Iterable[ast.AST]:
    """The parts that may have messages of their own."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return ()
    if isinstance(node, ast.JoinedStr):
        return [value for value in node.values if isinstance(value, ast.FormattedValue)]
    if isinstance(node, ast.Assign) and DATA & {ast.unparse(target) for target in node.targets}:
        return ()
    return ast.iter_child_nodes(node)


def _plain(text: str) -> str:
    """A text in one line, without code and markup."""
    return " ".join(_MARKUP.sub(" ", _CODE.sub(_VALUE, text)).split())
