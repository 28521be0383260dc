"""Checks of arguments before any request: pure.

An argument that is there counts, also an empty one, such as the value of an unset variable.
"""

from __future__ import annotations

import operator
import re
from typing import Any, Protocol, SupportsIndex, cast, runtime_checkable

from rlfleet.errors import Refused

LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""Source: the rule of `spec.version` and `spec.runID` in the CRD."""
_LABEL = (LABEL, "1 to 63 letters, digits, dots, dashes and underscores, such as '43'")
_RULES = {
    "version": _LABEL,
    "run_id": _LABEL,
    "digest": (re.compile(r"sha256:[0-9a-f]{64}"), "'sha256:' and 64 hex digits"),
    "path": (
        re.compile(r"(?!.{1025})(/[^/\x00-\x1f\x7f]+)+/?", re.DOTALL),
        "an absolute path of at most 1024 characters",
    ),
    "traceparent": (
        re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
        "a W3C traceparent, '00-TRACE-SPAN-01'",
    ),
}
_SHOWN_CHARACTERS = 80
Version = str | SupportsIndex
"""A label, or the number of a step, also one of NumPy."""


@runtime_checkable
class PathLike(Protocol):
    """Such as `pathlib.Path`. Source: `os.PathLike`."""

    def __fspath__(self) -> str:
        """Its text."""
        ...


Directory = str | PathLike


def label_of(version: Version) -> str:
    """The label that a version names: `43` of 43. Anything else stays as it is, and `check` refuses it."""
    if isinstance(version, SupportsIndex) and not isinstance(version, bool):
        return str(operator.index(version))
    return cast("str", version)


def path_of(path: Directory | None) -> str | None:
    """The text of a path."""
    return path.__fspath__() if isinstance(path, PathLike) else path


def check(version: Any, **others: Any) -> None:
    """Check a version, and its other arguments as far as they are not None.

    Errors: Refused with `Invalid`.
    """
    given = {"version": version} | {name: one for name, one in others.items() if one is not None}
    for name, value in given.items():
        rule, words = _RULES[name]
        if not isinstance(value, str) or rule.fullmatch(value) is None:
            shown = repr(value)[:_SHOWN_CHARACTERS]
            raise Refused(
                str(version), "Invalid", f"{name} is {shown}, but must be a text: {words}"
            )


def check_fleet(version: str, wanted: str | None, found: str) -> None:
    """Check that a WeightVersion is that of the wanted fleet. Errors: Refused with `Invalid`."""
    if wanted not in {None, found}:
        raise Refused(
            version,
            "Invalid",
            f"create_for names fleet {wanted!r}, but the WeightVersion is that of fleet {found!r}; "
            "give the WeightVersion of the other fleet another name",
        )
