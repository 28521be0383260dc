"""Lines of a file or of the input, for verbs that read replies and records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer


def read(name: str) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, as they come, with their numbers from 1. `-` is the input."""
    try:
        with sys.stdin if name == "-" else Path(name).open() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{name} cannot be read: {error}") from None
