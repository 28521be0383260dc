"""The one command for a GPU: parts that it leaves out, parts that fail, and labels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

import bench_gpu.__main__ as bench_gpu
import bench_staging.__main__ as bench_staging
from bench_gpu.__main__ import Results
from bench_gpu.clients import Round, Stream
from bench_worker.servers import Server, ServerEndedError


def stream(*spans: tuple[int, int], why: str = "", ended: float = 3.0) -> Stream:
    found: list[dict[str, Any]] = [{"version": "1", "start": a, "end": b} for a, b in spans]
    return Stream(began=1.0, ended=ended, gap=0.5, spans=found or None, why=why)


@pytest.mark.parametrize(
    ("spans", "is_labelled"),
    [
        ([(0, 8)], True),
        ([(0, 3), (3, 8)], True),
        ([], False),
        ([(0, 7)], False),
        ([(1, 8)], False),
        ([(0, 3), (4, 8)], False),
        ([(0, 4), (3, 8)], False),
    ],
)
def test_a_stream_is_labelled_if_its_spans_name_each_token_once(
    spans: list[tuple[int, int]], *, is_labelled: bool
) -> None:
    assert stream(*spans).is_labelled(8) is is_labelled


def test_failed_streams_make_no_tokens_and_are_counted() -> None:
    took = Round([stream((0, 8)), stream(why="500", ended=5.0), stream((0, 4), (4, 8))], 8, 0.1)

    assert took.figures["failed"] == 1
    assert took.figures["tokens_per_second"] == 2 * 8 / 4
    assert took.figures["cpu_seconds_per_10000_tokens"] == 10_000 * 0.1 / 16
    assert took.labels == {"wrongly_labelled": 0, "of_several_versions": 1}


def test_each_part_is_in_the_file_at_once_and_a_failed_one_does_not_end_the_others(
    tmp_path: Path,
) -> None:
    target = tmp_path / "results" / "gpu.json"
    results = Results(target, 60)

    def fails() -> None:
        raise RuntimeError("no memory")

    results.part("one", lambda: {"seconds": 1})
    assert json.loads(target.read_text())["one"] == {"seconds": 1}
    results.part("two", fails)
    results.part("three", lambda seconds: {"seconds": seconds}, 3)
    found = json.loads(target.read_text())
    assert found["failed"] == {"two": "RuntimeError: no memory"}
    assert found["three"] == {"seconds": 3}


def test_parts_that_would_begin_too_late_are_named(tmp_path: Path) -> None:
    results = Results(tmp_path / "gpu.json", -1)
    results.part("one", lambda: pytest.fail("it is too late"))

    assert results.found["left_out"] == {"one": "-1 s were over"}


def test_a_part_that_this_machine_cannot_run_is_named_with_the_reason(tmp_path: Path) -> None:
    results = Results(tmp_path / "gpu.json", 60, {"one": "it needs a GPU"})
    results.part("one", lambda: pytest.fail("it needs a GPU"))

    assert results.found["left_out"] == {"one": "it needs a GPU"}


def test_servers_that_do_not_start_are_a_failure_and_all_their_parts_are_named(
    tmp_path: Path,
) -> None:
    results = Results(tmp_path / "gpu.json", 60)

    def up() -> list[Server]:
        raise ServerEndedError("no memory")

    running = results.started("large", up)
    results.parts(running, {"pause": pytest.fail, "staging": pytest.fail})
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["failed"] == {"large: start": "ServerEndedError: no memory"}
    assert set(found["left_out"]) == {"pause", "staging"}


def test_a_part_that_hangs_ends_half_a_minute_after_the_last_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_gpu, "_MORE_SECONDS", -9.9)
    results = Results(tmp_path / "gpu.json", 10)
    results.part("one", Event().wait)

    assert results.found["failed"] == {"one": "TimeoutError: it took too long"}


def test_staging_is_measured_with_the_python_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = list[str]()

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ran.append(command[0])
        return SimpleNamespace(stdout="{}")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("RLFLEET_BENCH_PYTHON", "/opt/vllm/bin/python")
    bench_staging._printed_by("steps.py", "x")
    assert ran == ["/opt/vllm/bin/python"]
