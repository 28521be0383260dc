"""Modules of libraries that are not installed where the unit tests run, made for one test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Put modules where imports find them, until the test ends.

    Args:
        monkeypatch: The fixture of the test.
        modules: Dotted name → members; packages above are made as needed.
    """
    for name, members in modules.items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            package = ".".join(parts[:length])
            if package not in modules and package not in sys.modules:
                monkeypatch.setitem(sys.modules, package, ModuleType(package))
        made = ModuleType(name)
        for key, value in members.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)
