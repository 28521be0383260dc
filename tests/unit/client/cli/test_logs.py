"""`rlfleet logs`: which lines, in which order, and how they are read."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.cli import NOW, PODS, Recorded, golden, run

from rlfleet.cli.log_lines import LogLine, concerns, is_about, log_line
from rlfleet.errors import Forbidden, RlfleetError

STAMP = "2026-01-01T00:17:5"
OPERATOR_LINES = [
    (
        "1.100000001",
        "INFO",
        "fleet rl/policy: version 3 is being staged",
        {"namespace": "rl", "fleet": "policy", "desired": "3", "calls": 4},
    ),
    ("1.2", "INFO", "fleet rl/policy-2: version 9 is applied", {}),
    (
        "4.5",
        "WARNING",
        "stage on policy-1: refused",
        {"namespace": "rl", "fleet": "policy", "pod": "policy-1", "reason": "CheckpointTruncated"},
    ),
    ("4.6", "WARNING", "watch of pods: connection reset", {}),
    ("4.7", "WARNING", "fleet other/policy: store: hangs", {}),
    ("4.8", "INFO", "this process is the leader, term 2", {}),
]
WORKER_TEXT = f"""\
{STAMP}3.000000000Z 00:17:53 INFO    rlfleet: the engine has loaded version 3
{STAMP}2.5Z INFO 01-01 00:17:52 [core.py:64] Starting to load model
{STAMP}6.25Z {{"timestamp": "x", "level": "ERROR", "message": "the load failed", "event": "broken", "version": "3"}}
{STAMP}6.3Z Traceback (most recent call last):
"""


class Logged(Recorded):
    """An operator, two workers that log, and two that have not started."""

    def __init__(self) -> None:
        super().__init__("staging")
        self.moment = NOW
        operator = {
            "metadata": {"name": "rlfleet-abc", "namespace": "rlfleet-system", "uid": "o"},
            "spec": {"containers": [{"name": "operator"}]},
        }
        self.asked: list[dict[str, str]] = []
        self.worker_text = WORKER_TEXT
        self.answers["GET /api/v1/pods"] = {"items": [operator]}
        lines = [
            f"{STAMP}{s}Z "
            + json.dumps({"timestamp": "x", "level": level, "logger": "l", "message": m} | f)
            for s, level, m, f in OPERATOR_LINES
        ]
        log = "/api/v1/namespaces/rlfleet-system/pods/rlfleet-abc/log"
        self.answers[f"GET {log}"] = self._noted("\n".join(lines))
        self.answers[f"GET {PODS}/policy-0/log"] = lambda *_: self.worker_text
        self.answers[f"GET {PODS}/policy-1/log"] = f"{STAMP}5Z ready\n"
        waits = RlfleetError("container worker is waiting to start")
        for pod in ("policy-2", "policy-3"):
            self.answers[f"GET {PODS}/{pod}/log"] = waits

    def _noted(self, text: str) -> Any:
        return lambda params, _: self.asked.append(params) or text


def test_lines_are_merged_by_time(monkeypatch):
    objects = Logged()

    code, out, err = run(monkeypatch, objects, "logs")

    assert code == 0
    golden(out, "logs.staging.txt")
    assert err.count("waiting to start") == 2
    assert objects.asked == [
        {"container": "operator", "timestamps": "true", "sinceTime": "2026-01-01T00:08:00Z"}
    ]


def test_lines_are_selected_by_version(monkeypatch):
    _, out, _ = run(
        monkeypatch, Logged(), "logs", "--version", "3", "--since", "1h30m", "-o", "json"
    )

    lines = [json.loads(line) for line in out.splitlines()]
    assert [(one["pod"], one["level"]) for one in lines] == [
        ("rlfleet-abc", "INFO"), ("policy-0", "INFO"), ("policy-0", "ERROR"),
    ]  # fmt: skip
    assert lines[0]["fields"] == {
        "logger": "l", "namespace": "rl", "fleet": "policy", "desired": "3", "calls": 4,
    }  # fmt: skip


def test_yaml_has_one_document_for_each_line(monkeypatch):
    _, out, _ = run(monkeypatch, Logged(), "logs", "--version", "3", "-o", "yaml")

    assert out.count("---\n") == 3


def test_following_shows_each_line_once(monkeypatch):
    objects = Logged()

    def later(_: float) -> None:
        if "ended" in objects.worker_text:
            raise KeyboardInterrupt
        objects.worker_text += f"{STAMP}6.3Z it has ended\n"

    monkeypatch.setattr(time, "sleep", later)
    code, out, err = run(monkeypatch, objects, "logs", "--follow")

    assert code == 0
    lines = out.splitlines()
    assert len(lines) == len(set(lines)) == 9
    assert "it has ended" in lines[-1]
    assert err.count("waiting to start") == 2
    assert objects.asked[1]["sinceTime"] == "2026-01-01T00:17:54Z", "its own last line"


def test_without_the_right_the_operators_log_is_left_out(monkeypatch):
    objects = Logged()
    objects.answers["GET /api/v1/pods"] = Forbidden("pods is forbidden")
    objects.answers[f"GET {PODS}"] = lambda params, _: {
        "items": [] if "operator" in params["labelSelector"] else objects.pods
    }

    code, out, err = run(monkeypatch, objects, "logs")

    assert code == 0
    assert "rlfleet-abc" not in out
    assert "policy-0" in out
    assert "the operator's log is not shown" in err


def test_a_missing_right_to_read_logs_has_its_exit_code(monkeypatch):
    objects = Logged()
    objects.answers[f"GET {PODS}/policy-0/log"] = Forbidden("pods/log is forbidden")

    assert run(monkeypatch, objects, "logs")[0] == 7


def test_a_malformed_duration_is_a_usage_error(monkeypatch):
    code, _, err = run(monkeypatch, Logged(), "logs", "--since", "soon")

    assert code == 2
    assert "90s" in err


def line(message: str, level: str = "INFO", **fields: Any) -> LogLine:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return LogLine(time=moment, pod="p", level=level, message=message, fields=fields)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (line("fleet rl/policy: x"), True),
        (line("fleet rl/policy-2: x"), False),
        (line("fleet url/policy: x"), False),
        (line("pause on policy-12: done"), True),
        (line("pause on my-policy-12: done"), False),
        (line("pause on policy-12-3: done"), False),
        (line("x", pod="policy-0"), True),
        (line("x", pod="policy-0", namespace="rl"), True),
        (line("x", pod="policy-0", namespace="other"), False),
        (line("x", namespace="rl", fleet="policy"), True),
        (line("x", "ERROR", namespace="rl", fleet="policy-2"), False),
        (line("no connection", "ERROR"), True),
        (line("fleet a/b: no connection", "ERROR"), False),
        (line("stopping"), False),
    ],
)
def test_lines_of_the_operator_are_selected_by_fleet(found, *, expected):
    assert concerns(found, "rl", "policy") is expected


@pytest.mark.parametrize(
    ("found", "version", "expected"),
    [
        (line("version 3 is applied"), "3", True),
        (line("serves version 3."), "3", True),
        (line("version 31 is applied"), "3", False),
        (line("3 of 4 workers"), "3", False),
        (line("x", desired="3 of run-7"), "3", True),
        (line("x", version="step_3"), "3", False),
        (line("starting on step_3: newest"), "step_3", True),
        (line("starting on step_3-b: newest"), "step_3", False),
    ],
)
def test_lines_are_selected_by_the_version_they_name(found, version, *, expected):
    assert is_about(found, version) is expected


@pytest.mark.parametrize(
    "raw", ["", "no stamp here", "2026-01-01T00:00:00Z", '2026-01-01T00:00:00Z {"a": 1}']
)
def test_any_text_is_a_line(raw):
    assert log_line(raw, "p").pod == "p"


def test_a_json_line_of_vllm_has_a_level():
    vllm = {"asctime": "x", "levelname": "WARNING", "name": "vllm.x", "process": 7, "message": "m"}

    found = log_line(f"{STAMP}1Z {json.dumps(vllm)}", "p")
    assert (found.level, found.message, found.fields) == ("WARNING", "m", {})


def test_each_pod_is_read_from_its_own_last_line_on(monkeypatch):
    """Pods are read one after another, and the clock of a node may be behind."""
    objects = Logged()
    asked: list[str] = []

    def of_the_slow_clock(params: dict[str, str], _: object) -> str:
        asked.append(params["sinceTime"])
        return f"{STAMP}1Z from a node whose clock is behind\n"

    def later(_: float) -> None:
        if len(asked) == 2:
            raise KeyboardInterrupt

    objects.answers[f"GET {PODS}/policy-1/log"] = of_the_slow_clock
    monkeypatch.setattr(time, "sleep", later)
    run(monkeypatch, objects, "logs", "--follow")

    assert asked[1] == f"{STAMP}1Z"
