"""Unquoted scalars of YAML, and what kubectl sends to the API server for them."""

from __future__ import annotations

from typing import Any

KUBECTL: dict[str, Any] = {
    "yes": True,
    "on": True,
    "y": True,
    "N": False,
    "Off": False,
    "oN": "oN",
    "True": True,
    "~": None,
    "Null": None,
    "17": 17,
    "017": 15,
    "0o17": 15,
    "0x1F": 31,
    "0b101": 5,
    "-0b101": -5,
    "08": 8,
    "1_000": 1000,
    "_1": "_1",
    "1__": 1,
    "+5": 5,
    "1e3": 1000,
    "1.0": 1,
    "1.50": 1.5,
    ".5": 0.5,
    "-.5": -0.5,
    "5.": 5,
    "1.2.3": "1.2.3",
    "0x": "0x",
    "1:30": "1:30",
    "190:20:30": "190:20:30",
    "2026-01-01": "2026-01-01",
    "2026-01-01T10:00:00Z": "2026-01-01T10:00:00Z",
    "=": "=",
    "12e": "12e",
}
