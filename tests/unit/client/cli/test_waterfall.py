"""The calls to each worker in a report: which log lines they come from, and how they are drawn."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from datetime import timedelta
from typing import Any

import pytest
from tests.support.cli import PODS, Recorded, run
from tests.support.situations import WORKED_SECONDS

from rlfleet.cli.log_lines import LogLine, log_line
from rlfleet.cli.spans import Span, spans
from rlfleet.cli.view import PhaseView
from rlfleet.cli.waterfall import MOST_WORKERS, waterfall
from rlfleet.errors import Forbidden
from rlfleet.resources import WeightVersion

OPERATOR_LOG = "GET /api/v1/namespaces/rlfleet-system/pods/rlfleet-abc/log"


def weights_of(objects: Recorded) -> WeightVersion:
    return WeightVersion.model_validate(objects.weights)


def lines_of(objects: Recorded) -> list[LogLine]:
    return [log_line(raw, "rlfleet-abc") for raw in objects.answers[OPERATOR_LOG].splitlines()]


def found_in(objects: Recorded) -> list[Span]:
    return list(spans(lines_of(objects), weights_of(objects), objects.moment))


def call(objects: Recorded, after_seconds: float, **fields: Any) -> LogLine:
    """A log line of the operator, some seconds after the start of the rollout."""
    started = weights_of(objects).status.started_at
    assert started is not None
    return LogLine(
        time=started + timedelta(seconds=after_seconds),
        pod="rlfleet-abc",
        level="DEBUG",
        message="",
        fields={"event": "call", "outcome": "done", "seconds": 0.5} | fields,
    )


def test_each_worker_has_the_calls_of_the_rollout():
    found = found_in(Recorded("applied"))

    assert {
        pod: [s.operation for s in found if s.pod == pod] for pod in {s.pod for s in found}
    } == {f"policy-{n}": ["stage", "pause", "load", "resume"] for n in range(4)}
    stages = sorted((s for s in found if s.operation == "stage"), key=lambda s: s.pod)
    took = [(s.ended_at - s.began_at).total_seconds() for s in stages]
    assert took == pytest.approx(WORKED_SECONDS, abs=0.05)


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": 1e300}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": "1"}, {"seconds": None},
        {"version": ["7"]}, {"adapter": {}}, {"event": []}, {"event": {}}, {"operation": []}, {"pod": ""},
    ],
)  # fmt: skip
@pytest.mark.parametrize("event", ["call", "loaded"])
def test_a_line_with_odd_fields_does_not_count_as_a_call(event, odd):
    """A worker may log anything."""
    objects = Recorded("applied")
    weights = weights_of(objects)
    good = {"event": event, "operation": "stage", "pod": "policy-0", "seconds": 0.1}
    strange = call(objects, 0.2, **{**good, **odd})

    found = spans([call(objects, 0.1, **good), strange], weights, objects.moment)
    assert len(found) <= 2
    assert all(0 <= (one.ended_at - one.began_at).total_seconds() <= 1 for one in found)


def test_calls_of_the_version_before_are_left_out():
    objects = Recorded("staging")

    assert [(s.pod, s.operation) for s in found_in(objects)] == [
        ("policy-2", "stage"),
        ("policy-3", "stage"),
    ]
    assert len([one for one in lines_of(objects) if one.fields.get("event") == "call"]) > 4


def test_a_renewal_of_a_pause_does_not_count_as_a_second_pause():
    objects = Recorded("applied")
    pause = {"pod": "policy-0", "operation": "pause"}
    lines = [call(objects, 1, **pause), call(objects, 2, **pause)]
    lines += [call(objects, 3, pod="policy-0", operation="resume"), call(objects, 4, **pause)]

    found = spans(lines, weights_of(objects), objects.moment)

    assert [s.operation for s in found] == ["pause", "resume", "pause"]


def test_a_load_that_only_the_worker_has_logged_is_shown_once(monkeypatch):
    objects = Recorded("applied")
    quiet = [raw for raw in objects.answers[OPERATOR_LOG].splitlines() if '"DEBUG"' not in raw]
    logged = {"message": "loaded", "event": "loaded", "version": "2", "seconds": 2.0}
    text = f"2026-01-01T00:16:50Z {json.dumps(logged)}\n"
    objects.answers[f"GET {PODS}/policy-1/log"] = text

    _, with_debug, _ = run(monkeypatch, objects, "report")
    objects.answers[OPERATOR_LOG] = "\n".join(quiet)
    _, without, _ = run(monkeypatch, objects, "report")

    assert workers_in(with_debug) == [f"policy-{n}" for n in range(4)]
    assert workers_in(without) == ["policy-1"]


def workers_in(page: str) -> list[str]:
    return re.findall(r">(policy-\d)</text>", page)


def test_a_call_that_failed_is_drawn_in_another_colour_with_its_outcome(monkeypatch):
    _, out, _ = run(monkeypatch, Recorded("stalled"), "report")

    assert out.count("fill: var(--halted)") >= 2
    assert "CheckpointTruncated</text>" in out


STAGING = PhaseView(phase="Staging", seconds=2.0, running=False)
LOADING = PhaseView(phase="Loading", seconds=0.0, running=False)


def drawn(objects: Recorded, lines: list[LogLine], *phases: PhaseView) -> Any:
    weights = weights_of(objects)
    return waterfall(weights.status.started_at, phases, spans(lines, weights, objects.moment))


def test_phases_and_workers_are_to_scale_on_one_axis():
    objects = Recorded("applied")
    lines = [
        call(objects, 2, pod="policy-0", operation="stage", seconds=2.0),
        call(objects, 4, pod="policy-0", operation="load", seconds=1.0),
    ]

    found = drawn(objects, lines, STAGING)

    assert found.seconds == 4.0
    phase, worker = found.rows
    assert [(bar.begin, bar.length) for bar in phase.bars] == [(0.0, 0.5)]
    assert [(bar.begin, bar.length) for bar in worker.bars] == [(0.0, 0.5), (0.75, 0.25)]
    assert worker.value == "at 4.00s"


def test_a_phase_that_has_not_begun_has_no_bar():
    assert [row.label for row in drawn(Recorded("applied"), [], STAGING, LOADING).rows] == [
        "Staging"
    ]


def test_where_only_loads_are_known_the_note_does_not_say_what_is_between_them():
    objects = Recorded("applied")
    load = call(objects, 4, pod="policy-0", operation="load", seconds=1.0)
    stage = call(objects, 2, pod="policy-0", operation="stage", seconds=1.0)

    assert "waits for the others" not in drawn(objects, [load], STAGING).note
    assert "--log-level=DEBUG" in drawn(objects, [load], STAGING).note
    assert "waits for the others" in drawn(objects, [stage, load], STAGING).note


def test_a_large_fleet_is_drawn_with_the_workers_that_ended_last():
    objects = Recorded("applied")
    lines = [call(objects, 1 + n / 100, pod=f"policy-{n}", operation="stage") for n in range(100)]

    found = drawn(objects, lines)

    assert [one.label for one in found.rows] == [
        f"policy-{n}" for n in range(100 - MOST_WORKERS, 100)
    ]
    assert f"The {MOST_WORKERS} of 100 workers" in found.note


def test_without_the_right_to_read_logs_the_report_has_no_workers(monkeypatch):
    objects = Recorded("applied")
    objects.answers["GET /api/v1/pods"] = Forbidden("pods is forbidden")
    objects.answers[f"GET {PODS}"] = Forbidden("pods is forbidden; the account needs list")

    code, out, err = run(monkeypatch, objects, "report")

    assert (code, workers_in(out)) == (0, [])
    assert "the account needs list" in " ".join(err.split())
    assert "--log-level=DEBUG" in out


def test_without_logs_none_is_read(monkeypatch):
    objects = Recorded("applied")

    _, out, _ = run(monkeypatch, objects, "report", "--no-logs")

    assert workers_in(out) == []
    assert not [request for request, _ in objects.requests if request.endswith("/log")]


@pytest.mark.parametrize("by", ["the name of the file", "the option"])
def test_the_waterfall_is_a_picture(monkeypatch, tmp_path, by):
    file = tmp_path / "rollout.svg"
    if by == "the option":
        _, text, _ = run(monkeypatch, Recorded("applied"), "report", "--format", "svg")
    else:
        run(monkeypatch, Recorded("applied"), "report", "--file", str(file))
        text = file.read_text()

    picture = ET.fromstring(text)  # noqa: S314 - made here

    texts = ["".join(one.itertext()) for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"policy: version 2", "Staging", "Resuming", "policy-3"} <= set(texts)
    assert re.findall(r"(?:src|href)=|url\(|<script", text) == []


def test_a_fleet_without_a_rollout_has_no_picture(monkeypatch):
    code, _, err = run(monkeypatch, Recorded("external"), "report", "--format", "svg")

    assert code == 2
    assert "no waterfall" in " ".join(err.split())


def test_a_report_of_an_adapter_has_the_calls_of_that_adapter():
    objects = Recorded("applied")
    objects.weights["spec"]["adapter"] = "sql"
    version = objects.weights["status"]["desiredVersion"]
    lines = [
        call(objects, 1, pod="policy-0", operation="stage-adapter", version=version, adapter="sql"),
        call(objects, 2, pod="policy-0", operation="adapter", version=version, adapter="sql"),
        call(objects, 2, pod="policy-0", operation="adapter", version=version, adapter="other"),
        call(objects, 2, pod="policy-0", operation="stage", version=version),
    ]

    found = spans(lines, weights_of(objects), objects.moment)

    assert [(s.pod, s.operation) for s in found] == [
        ("policy-0", "stage-adapter"), ("policy-0", "adapter"),
    ]  # fmt: skip
