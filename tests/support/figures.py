"""The figures in a message. Tests name these and not the words, which may change."""

from __future__ import annotations

import re


def figures(message: str) -> set[int]:
    """Returns the whole numbers in a message, such as 3 and 42 in `3 workers cannot load version 42`."""
    return {int(found) for found in re.findall(r"(?<![\w.-])\d+(?![\w.]*\w)", message)}
