"""Counts what was simulated, and how golden logs are renewed."""

from __future__ import annotations

from collections import Counter

import pytest

COUNTED = "simulated"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden logs again")


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how much was simulated; properties of tests come back from every process."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            kind, _, what = name.partition(" ")
            if kind == COUNTED:
                counts[what] += value
    if counts:
        listed = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"simulated: {listed}")
