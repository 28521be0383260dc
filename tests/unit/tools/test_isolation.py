"""The table of attacks has what was measured, and both writers of the page leave each other's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos import table as chaos_table
from isolation.rows import ROWS
from isolation.table import BEGIN, END, table, write

ROW = next(row for row in ROWS if row.cause)


def costs(attack: str, *, attacked: float) -> dict[str, Any]:
    counts = {"lapsed": 0, "ended": 0, "operator_mib": 93.4, "rl_api_mib": None}
    return {"attack": attack, "alone": [0.1, 0.2, 0.9], "attacked": [attacked], **counts}


def results(*attacks: dict[str, Any]) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "c", "memory_gib": 24, "load_average_at_start": 1.5}
    limits = {"operator_mib": 512, "rl_api_mib": 256}
    return {"date": "d", "machine": machine, "limits_mib": limits, "attacks": attacks}


def test_a_row_has_the_medians_their_ratio_and_the_memory() -> None:
    text = table(results(costs(ROW.attack, attacked=0.3)))
    (line,) = (each for each in text.splitlines() if each.startswith(f"| {ROW.attack} "))

    assert "| 0.20 s | 0.30 s | 1.5 | 0 | 0 | 93 MiB (512) |  |" in line
    assert ROW.cause not in text


def test_a_row_beyond_the_goal_has_its_cause() -> None:
    assert f"{ROW.attack}: {ROW.cause}" in table(results(costs(ROW.attack, attacked=0.5)))


def test_each_writer_leaves_the_part_of_the_other(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"LAST\n\n{BEGIN}\n{END}\n")
    write(page, results(costs(ROW.attack, attacked=0.3)))
    assert page.read_text().startswith("LAST\n\n")
    own = page.read_text().partition(BEGIN)[2]

    chaos_table.write(page, [], 0)

    assert page.read_text().endswith(f"{BEGIN}{own}")
    assert "LAST" not in page.read_text()
