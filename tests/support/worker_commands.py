"""Command lines of the worker, as its commands get them."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from fleet_worker import __main__ as program


def parsed(command: str, *flags: object) -> argparse.Namespace:
    """The parsed command line of a command, which does not run."""
    seen: list[argparse.Namespace] = []

    def note(given: argparse.Namespace) -> int:
        seen.append(given)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"fleet_worker.process.{command}.{command}", note)
        program.main([command, *map(str, flags)])
    return seen[0]


def served(*engine: str, **changes: Any) -> argparse.Namespace:
    """A command line of `serve` with vLLM's arguments, and what a test changes of the result."""
    named = ("--model=/m", "--served-model-name=policy", "--version=base")
    given = parsed("serve", *named, "--", *engine)
    vars(given).update(changes)
    return given
