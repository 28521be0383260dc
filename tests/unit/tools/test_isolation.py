"""The table of attacks has what was measured, and each writer of the page leaves the parts of the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from chaos import table as chaos_table
from isolation.__main__ import merged
from isolation.rows import ROWS
from isolation.table import table, write

PARTS = ("failures", "deltas", "isolation")
ROW = next(row for row in ROWS if row.cause)


def run(date: str, load: float) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "c", "memory_gib": 24, "load_average_at_start": load}
    return {"date": date, "machine": machine}


def costs(attack: str, *, attacked: float, **more: Any) -> dict[str, Any]:
    counts = {"lapsed": 0, "ends": [], "operator_mib": 93.4, "rl_api_mib": None}
    times = {"alone": [0.1, 0.2, 0.9], "attacked": [attacked]}
    return {"attack": attack, **times, **counts, **run("d", 1.5), **more}


def results(*attacks: dict[str, Any]) -> dict[str, Any]:
    limits = {"operator_mib": 512, "rl_api_mib": 256}
    return {"limits_mib": limits, "attacks": attacks}


def test_a_row_has_the_medians_their_ratio_and_the_memory() -> None:
    text = table(results(costs(ROW.attack, attacked=0.3)))
    (line,) = (each for each in text.splitlines() if each.startswith(f"| {ROW.attack} "))

    assert "| 0.20 s | 0.30 s | 1.5 |  | 0 | 0 | 93 MiB (512) |  |" in line
    assert ROW.cause not in text


def test_a_row_beyond_the_goal_has_its_cause() -> None:
    assert f"{ROW.attack}: {ROW.cause}" in table(results(costs(ROW.attack, attacked=0.5)))


def test_a_row_has_what_the_api_server_alone_takes_and_how_busy_each_process_was() -> None:
    more = {"server_alone": [0.1], "server_attacked": [0.4], "busy": {"operator": 0.2, "etcd": 0.1}}
    text = table(results(costs(ROW.attack, attacked=0.9, **more)))

    assert "| 4.5 | 4.0 |" in text
    assert f"{ROW.attack} (operator 0.20, etcd 0.10): " in text


def test_rows_that_were_not_measured_again_keep_their_day_and_their_load() -> None:
    one, other = ROWS[0].attack, ROWS[1].attack
    last = [costs(each, attacked=0.3, **run("monday", 0.5)) for each in (one, other)]
    new = costs(other, attacked=0.1) | {"limits_mib": {}}
    found = merged(last, [new], run("friday", 4.5))["attacks"]

    kept = [
        (each["attack"], each["date"], each["machine"]["load_average_at_start"]) for each in found
    ]
    assert kept == [(one, "monday", 0.5), (other, "friday", 4.5)]
    lines = [line for line in table(results(*found)).splitlines() if "Measured" in line]
    assert [("monday" in line, one in line, other in line) for line in lines] == [
        (True, True, False),
        (False, False, True),
    ]


def test_each_writer_leaves_the_parts_of_the_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = [f"<!-- {name}: begin -->\nLAST\n<!-- {name}: end -->\n" for name in PARTS]
    page.write_text("# Title\n\n" + "\n".join(marks))
    write(page, results(costs(ROW.attack, attacked=0.3)))
    assert page.read_text().count("LAST") == 2
    chaos_table.write_deltas(page, [], 0)
    assert page.read_text().count("LAST") == 1
    chaos_table.write(page, [], 0)

    assert page.read_text().startswith("# Title\n\n<!-- failures: begin -->\n")
    found = re.findall(r"^<!-- (\w+): (\w+) -->$", page.read_text(), re.MULTILINE)
    assert found == [(name, end) for name in PARTS for end in ("begin", "end")]
    assert "LAST" not in page.read_text()
