"""The names in the nearest directory that exists, for the refusal of files that are absent.

A trainer often writes to another mount than the workers read. The names show it at once. They are sorted and
bounded, so that a message changes only if the directory does, and never come from outside of the roots.
"""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from fleet_worker.checkpoint.files import Roots, is_uri
from fleet_worker.checkpoint.places import names_beside
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.base import printable

_ABSENT = frozenset({Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND})
_NAMED_AT_EACH_END = 4
_READ_AT_MOST = 10_000
_NAME_CHARACTERS = 60
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NONBLOCK


def with_what_is_there(refusal: Refusal, path: str, roots: Roots) -> Refusal:
    """Return a refusal to open `path`. One of absent files also tells what is there instead."""
    if refusal.reason not in _ABSENT or not (found := _found(path, roots)):
        return refusal
    return Refusal(
        refusal.reason,
        f"{refusal.message}; {found}",
        retry_after_seconds=refusal.retry_after_seconds,
    )


def _found(path: str, roots: Roots) -> str:
    if not is_uri(path):
        return _what_is_there(path, roots)
    folder = path.rpartition("/")[0]
    try:
        roots.check_name(folder)
        return f"{folder} {_described(names_beside(path, _READ_AT_MOST + 1))}"
    except Refusal:
        return ""


def _what_is_there(path: str, roots: Roots) -> str:
    """Return the names in the nearest directory; empty if the worker may not see it."""
    for folder in _and_its_parents(os.path.normpath(path)):
        try:
            roots.check_name(folder)
        except Refusal:
            return f"the weights root {roots.root_of(path)} does not exist"
        try:
            names = _names_in(folder, roots)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, Refusal):
            return ""
        return f"{folder} {_described(names)}"
    return ""


def _and_its_parents(path: str) -> list[str]:
    return [path, *map(str, Path(path).parents)]


def _names_in(folder: str, roots: Roots) -> list[str]:
    """Return names in a directory, at most `_READ_AT_MOST` + 1, without hidden ones."""
    descriptor = os.open(folder, _OPEN)
    try:
        roots.check_opened(descriptor)
        with os.scandir(descriptor) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))
            return list(islice(names, _READ_AT_MOST + 1))
    finally:
        os.close(descriptor)


def _described(names: list[str]) -> str:
    if not names:
        return "is empty"
    if len(names) > _READ_AT_MOST:
        return f"has more than {_READ_AT_MOST} entries"
    shown = [_printable(name) for name in sorted(names, key=_natural)]
    if len(shown) <= 2 * _NAMED_AT_EACH_END:
        return f"has {', '.join(shown)}"
    first, last = shown[:_NAMED_AT_EACH_END], shown[-_NAMED_AT_EACH_END:]
    return f"has {len(shown)} entries: {', '.join(first)} … {', '.join(last)}"


def _natural(name: str) -> list[str | int]:
    """Return a sort key with `step_9` before `step_10`. Every second part is a number."""
    return [int(p) if i % 2 else p for i, p in enumerate(re.split(r"([0-9]+)", name))]


def _printable(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _NAME_CHARACTERS else text[: _NAME_CHARACTERS - 1] + "…"
