"""Figures of the benchmark of scale."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench_scale import __main__ as bench
from bench_scale import goals, limits, report
from bench_scale.fanout import BARRIERS, FIRST, body_of, roll
from bench_scale.server import is_of_operator


def rollout(seconds: float, writes: int = 7) -> dict[str, Any]:
    phases = dict.fromkeys(report.PARTS, seconds / len(report.PARTS))
    return {
        "seconds": seconds,
        "phases": phases,
        "applied_seconds": seconds,
        "writes": writes,
        "calls": 100,
        "cpu_seconds": 0.02,
    }


def by_hand(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "cpu_seconds": 0.01, "phases": {}, "failed": 0}


def size(workers: int, **changed: Any) -> dict[str, Any]:
    return {
        "workers": workers,
        "bring_up": {"seconds": 2.0},
        "rollouts": [rollout(0.3), rollout(0.1), rollout(0.2, writes=9)],
        "contenders": {"aiohttp": [by_hand(0.4)], "httpx": [by_hand(0.8)]},
        "rollout_process_seconds": {"operator": 0.06, "fake-fleet": 0.01},
        "rest": {"seconds": 35.0, "writes": 0, "cpu_percent": 0.4},
        "decide": [
            {"phase": "Staging", "calls": workers, "cpu_seconds": [0.004, 0.002]},
            {"phase": "Applied", "calls": 0, "cpu_seconds": [0.001]},
        ],
        "worst_lag_seconds": 0.08,
        "worst_busy_seconds": 0.02,
        "peak_memory_bytes": 100 * 2**20,
        "leases_lost": 0,
        "takeover": {"seconds": 17.0, "applied_seconds": 17.2, "loads": workers},
        "load_averages": [0.4, 2.5],
    } | changed


def results(*sizes: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 24, "load_average_at_start": 0.5}
    return {"machine": machine, "sizes": list(sizes)}


def cells(table: str, beginning: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {beginning} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_each_figure_is_next_to_its_goal() -> None:
    table = report.tables(results(size(16), size(64), size(256)))

    assert cells(table, "Figure") == ["16 workers", "64 workers", "256 workers"]
    resumed = cells(table, "patch to last worker resumed, p50")
    assert resumed == ["0.200 s (≤ 0.040 s)", "0.200 s", "0.200 s (≤ 0.120 s)"]
    assert cells(table, "÷ by hand with aiohttp") == ["0.50", "0.50", "0.50 (≤ 0.60)"]
    assert cells(table, "API writes per rollout, most") == ["9 (≤ 7)", "9", "9 (≤ 7)"]
    assert cells(table, "one decision, slowest phase")[2] == "2.00 ms (≤ 4.00 ms)"
    assert cells(table, "operator's processor time per call")[0] == "0.20 ms (≤ 0.12 ms)"
    assert cells(table, "load average of the machine afterwards") == ["2.50"] * 3
    killed = "operator killed in the middle of a rollout: until all serve"
    assert cells(table, killed) == ["17 s"] * 3
    assert cells(table, "1. Staging, with calls") == ["2.0 ms"] * 3
    assert cells(table, "2. Applied, without calls") == ["1.0 ms"] * 3


def test_missed_goals_are_named_with_their_sizes() -> None:
    table = report.tables(results(size(16), size(256)))

    (line,) = (li for li in table.splitlines() if li.startswith("Goals that this run misses"))
    assert "patch to last worker resumed, p50 (16, 256)" in line
    assert "one decision, slowest phase (16)" in line
    assert "÷ by hand with aiohttp" not in line


class TestPublishing:
    """The measurements themselves are replaced: what counts is what becomes of their results."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "page.md").write_text(
            "before\n<!-- bench-scale: begin -->\nold\n<!-- bench-scale: end -->\nafter\n"
        )
        (tmp_path / "scale.json").write_text("old")
        monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
        monkeypatch.setattr(report, "RESULTS", tmp_path / "scale.json")
        monkeypatch.setattr(report, "CHARTS", tmp_path / "images")
        monkeypatch.setattr(report, "UNFINISHED", tmp_path / "unfinished.json")
        monkeypatch.setattr(limits, "RUNS", tmp_path / "runs.json")
        monkeypatch.setattr(bench.Cluster, "start", lambda profile: nullcontext())
        monkeypatch.setattr(bench.place, "prepare", lambda cluster, alone: None)
        monkeypatch.setattr(bench, "machine", lambda: results()["machine"])
        monkeypatch.setattr(bench.signal, "signal", lambda number, handler: None)
        return tmp_path

    def run(
        self, monkeypatch: pytest.MonkeyPatch, measured: Callable[[int], Any], *options: str
    ) -> int:
        monkeypatch.setattr(bench.measure, "size", lambda _, workers, *a, **k: measured(workers))
        monkeypatch.setattr(sys, "argv", ["bench-scale", "--sizes", "16,256", *options])
        return bench.main()

    def test_a_complete_run_is_published(self, folder, monkeypatch) -> None:
        assert self.run(monkeypatch, size) == 0

        assert [row["workers"] for row in report.read()["sizes"]] == [16, 256]
        assert "| 16 workers | 256 workers |" in (folder / "page.md").read_text()

    def test_a_failed_run_changes_no_published_figure(self, folder, monkeypatch, capsys) -> None:
        failing = {16: size(16), 256: {"workers": 256, "failed": "3 of 256 serve\nlog"}}

        assert self.run(monkeypatch, failing.__getitem__) == 1

        assert "old" in (folder / "page.md").read_text()
        assert (folder / "scale.json").read_text() == "old"
        kept = json.loads((folder / "unfinished.json").read_text())
        assert [row["workers"] for row in kept["sizes"]] == [16, 256]
        assert "3 of 256 serve" in capsys.readouterr().err

    def test_a_run_a_fifth_slower_than_the_last_five_is_published_only_on_request(
        self, folder, monkeypatch, capsys
    ) -> None:
        def slower(workers: int) -> dict[str, Any]:
            return size(workers, peak_memory_bytes=121 * 2**20)

        for _ in range(4):
            assert self.run(monkeypatch, size) == 0
        assert self.run(monkeypatch, slower) == 0, "four runs are not the standard"
        for _ in range(5):
            assert self.run(monkeypatch, size) == 0
        published = (folder / "scale.json").read_text()

        assert self.run(monkeypatch, slower) == 1
        assert (folder / "scale.json").read_text() == published
        assert "peak memory with 256 workers" in capsys.readouterr().err

        assert self.run(monkeypatch, slower, "--accept") == 0
        runs = limits.read()
        memory = [run["sizes"]["256"]["peak memory"] for run in runs]
        assert memory == [100 * 2**20] * 4 + [121 * 2**20]

    def test_limits_come_from_the_same_machine(self, folder, monkeypatch) -> None:
        for _ in range(5):
            self.run(monkeypatch, size)
        runs = limits.read()
        quicker = size(256, peak_memory_bytes=2**20)
        for run in runs:
            run["machine"] |= {"cpu": "another"}
            run["sizes"] = {"256": limits.figures_of(quicker)}
        assert limits.beyond(results(size(256)), runs) == []


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ({"verb": "PATCH", "resource": "inferencefleets", "subresource": "status"}, True),
        ({"verb": "PATCH", "resource": "weightversions", "subresource": ""}, False),
        ({"verb": "POST", "resource": "events", "subresource": ""}, True),
        ({"verb": "POST", "resource": "pods", "subresource": ""}, True),
        ({"verb": "PATCH", "resource": "pods", "subresource": "status"}, False),
        ({"verb": "APPLY", "resource": "configmaps", "subresource": ""}, True),
        ({"verb": "PUT", "resource": "leases", "subresource": ""}, False),
        ({"verb": "GET", "resource": "pods", "subresource": ""}, False),
    ],
)
def test_only_writes_of_the_operator_are_counted(labels: dict[str, str], *, counts: bool) -> None:
    assert is_of_operator(labels) is counts


def test_goals_belong_to_the_sizes_of_the_table() -> None:
    for figure in goals.FIGURES:
        assert set(figure.goals) <= set(goals.MAX_WRITES)


def test_a_longer_rollout_may_report_more_progress() -> None:
    budgets = [goals.write_budget(1000, seconds) for seconds in (0.4, 0.9, 1.0, 3.5)]
    assert budgets == [8, 8, 10, 14]


async def test_a_fan_out_passes_the_same_barriers_and_leaves_out_failures() -> None:
    called: list[tuple[str, int]] = []

    async def put(number: int, path: str, _: dict[str, Any]) -> int:
        called.append((path.rpartition("/")[2], number))
        if number == 1 and path.endswith("pause"):
            raise OSError
        return 200

    first = await roll(put, 3, "1", 1)
    assert [kind for kind, _ in called] == [kind for kind, _ in FIRST for _ in range(3)]
    assert first["failed"] == 0

    called.clear()
    second = await roll(put, 3, "2", 2)
    kinds = [kind for kind, _ in BARRIERS]
    assert [k for k, _ in called] == [k for k in kinds for _ in range(2 + (k in kinds[:2]))]
    assert second["failed"] == 1
    assert list(second["phases"]) == kinds


def test_every_call_of_a_fan_out_has_the_protocols_fields() -> None:
    assert body_of("stage", "7", 2)["source"] == {"path": "/weights/step_7"}
    assert "version" not in body_of("pause", "7", 2)
    assert body_of("resume", "7", 2)["epoch"] == {"term": 1, "sequence": 2}
