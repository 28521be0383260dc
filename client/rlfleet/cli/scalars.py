"""Unquoted scalars of YAML as kubectl reads them, by rules of YAML 1.1 and 1.2 and of Go: pure.

Source: `resolve` of goyaml.v2 in sigs.k8s.io/yaml, and its way to JSON, where a whole number has no fraction.
"""

from __future__ import annotations

import re
from math import inf, isinf

Scalar = str | bool | int | float | None

_CONSTANTS: tuple[tuple[str, Scalar], ...] = (
    ("y Y yes Yes YES true True TRUE on On ON", True),
    ("n N no No NO false False FALSE off Off OFF", False),
    ("~ null Null NULL", None),
    (".nan .NaN .NAN", float("nan")),
    (".inf .Inf .INF +.inf +.Inf +.INF", float("inf")),
    ("-.inf -.Inf -.INF", float("-inf")),
)
_WORDS = {word: value for words, value in _CONSTANTS for word in words.split()} | {"": None}
_NUMBER = re.compile(r"[-+]?[0-9]")
_WHOLE = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"^([-+]?)0([0-7]+)$")


def value_of(text: str) -> Scalar:
    """The value of an unquoted scalar. A date stays text, and so does a number beyond a float."""
    if text in _WORDS:
        return _WORDS[text]
    plain = text.replace("_", "") if _NUMBER.match(text) else text
    if _WHOLE.fullmatch(plain) and (whole := _in_64_bits(plain)) is not None:
        return whole
    number = float(plain) if _FLOAT.fullmatch(plain) else inf
    if isinf(number):
        return text
    return int(number) if number.is_integer() else number


def _in_64_bits(plain: str) -> int | None:
    """The whole number; None beyond 64 bits, where Go reads a decimal one as a float and others as text."""
    try:
        whole = int(_OCTAL.sub(r"\g<1>0o\2", plain), 0)
    except ValueError:  # more digits than Python converts
        return None
    return whole if -(2**63) <= whole < 2**64 else None


def key_of(value: object) -> object:
    """A key as JSON has it: text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
