"""The live screen of `rlfleet watch`: rows of workers from their metrics, past rollouts, Events, keys."""

from __future__ import annotations

import io
import os
import pty
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, ConsoleDimensions
from tests.support.cli import PODS, FakeApi, Recorded, golden, run
from tests.support.waiting import eventually

from rlfleet.cli import show, watch
from rlfleet.cli.keys import Keys, keys
from rlfleet.cli.live import MOST_WORKERS, Detail, Live
from rlfleet.cli.screen import FleetScreen
from rlfleet.cli.view import fleet_view
from rlfleet.cli.worker_figures import (
    Figures,
    figures_of,
    last_pause_seconds,
    tokens_per_second,
)
from rlfleet.errors import Forbidden, Unavailable
from rlfleet.resources import InferenceFleet, WeightVersion

EVENTS = "/api/v1/namespaces/rl/events"
METRICS = """# TYPE rlfleet_worker_phase gauge
rlfleet_worker_phase{phase="serving"} 1.0
rlfleet_worker_phase{phase="paused"} 0.0
rlfleet_worker_version_info{version="3",run_id="r"} 1.0
rlfleet_worker_requests_held 2.0
rlfleet_worker_paused_seconds 0.0
rlfleet_worker_pause_seconds_count 1.0
rlfleet_worker_pause_seconds_sum 0.5
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1000.0
"""
CLEARED = "\x1b[2J"
EVENT = {
    "type": "Warning", "reason": "CheckpointTruncated", "message": "2 workers\x1b[31m cannot load",
    "lastTimestamp": "2026-01-01T00:17:00Z",
}  # fmt: skip


class Watched(Recorded):
    """A fleet whose workers have metrics that a test can change."""

    def __init__(self, situation: str = "stalled") -> None:
        super().__init__(situation)
        self.metrics = METRICS
        for pod in self.pods:
            ports = [{"name": "metrics", "containerPort": 8082}]
            pod["spec"]["containers"] = [{"name": "worker", "ports": ports}]
            pod["status"]["podIP"] = "10.0.0.1"
            path = f"GET {PODS}/{pod['metadata']['name']}:8082/proxy/metrics"
            self.answers[path] = lambda *_: self.metrics
        self.answers[f"GET {EVENTS}"] = {"items": [EVENT]}

    @property
    def objects(self) -> tuple[InferenceFleet, WeightVersion]:
        return InferenceFleet.model_validate(self.fleet), WeightVersion.model_validate(self.weights)


def looked(objects: Watched, live: Live) -> Detail:
    return live.look(*objects.objects, objects.moment)


def sampled(objects: Watched, live: Live) -> Detail:
    """The first look that has the metrics of all workers."""
    found: list[Detail] = []

    def complete() -> bool:
        found.append(looked(objects, live))
        return bool(found[-1].workers) and all(one.figures for one in found[-1].workers)

    eventually(complete)
    return found[-1]


@pytest.fixture
def every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlfleet.cli.live._METRICS_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("rlfleet.cli.live._EVENTS_EVERY_SECONDS", 0.0)


def screen(objects: Watched, detail: Detail, width: int = 120, height: int = 40) -> str:
    fleet, weights = objects.objects
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(FleetScreen(fleet_view(fleet, [weights], objects.moment), detail))
    return console.export_text()


def test_the_screen_has_workers_rollouts_and_events():
    objects = Watched()
    live = Live(objects)
    golden(screen(objects, sampled(objects, live)), "screen.live.txt")


def test_a_screen_that_is_too_small_for_rows_has_squares():
    objects = Watched()
    live = Live(objects)
    detail = sampled(objects, live)

    shown = screen(objects, detail, height=12)

    assert "WORKER" not in shown
    assert "■■■■" in shown
    assert len(shown.splitlines()) <= 12


def test_events_have_the_lines_that_are_left_the_newest_first():
    objects = Watched()
    events = [
        EVENT
        | {"message": f"number {n} {'is long ' * 20}", "lastTimestamp": f"2026-01-01T00:1{n}:00Z"}
        for n in range(5)
    ]
    objects.answers[f"GET {EVENTS}"] = {"items": events}

    shown = screen(objects, sampled(objects, Live(objects)), height=24)

    assert len(shown.splitlines()) <= 24
    assert "number 4" in shown
    assert "number 0" not in shown


def test_events_of_a_service_with_the_name_of_the_fleet_are_not_read():
    objects = Watched()
    asked: list[dict[str, str]] = []
    objects.answers[f"GET {EVENTS}"] = lambda only, _: asked.append(only) or {"items": []}

    looked(objects, Live(objects))

    assert asked == [
        {
            "fieldSelector": "involvedObject.name=policy,involvedObject.apiVersion=rlfleet.dev/v1alpha1"
        }
    ]


def test_a_terminal_that_has_another_size_is_cleared(monkeypatch):
    objects = FakeApi(obeys=False)
    objects.desire(version="43")
    drawn = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)

    def narrower() -> None:
        drawn.size = ConsoleDimensions(60, 20)
        objects.look("Loading")

    acts = [lambda: objects.look("Staging"), narrower, objects.apply]
    monkeypatch.setattr(time, "sleep", lambda _: acts.pop(0)())
    monkeypatch.setattr(watch, "Console", lambda **_: drawn)
    monkeypatch.setattr(show, "console", lambda: drawn)

    assert run(monkeypatch, objects, "watch", "--until-applied")[0] == 0
    assert drawn.file.getvalue().count(CLEARED) == 1


@pytest.mark.usefixtures("every_look")
def test_speed_and_pause_come_from_two_looks():
    objects = Watched()
    live = Live(objects)
    sampled(objects, live)
    objects.metrics = METRICS.replace("1000.0", "1500.0").replace("count 1.0", "count 2.0")
    objects.metrics = objects.metrics.replace("sum 0.5", "sum 1.75")

    def changed() -> bool:
        one = looked(objects, live).workers[0]
        return bool(one.last_pause_seconds)

    eventually(changed)
    (first, *_) = looked(objects, live).workers
    assert first.last_pause_seconds == 1.25


@pytest.mark.parametrize(
    ("denied", "rows", "events"),
    [(PODS, 0, 1), (EVENTS, 4, 0)],
)
@pytest.mark.usefixtures("every_look")
def test_a_read_that_the_account_may_not_make_is_tried_once(denied, rows, events):
    objects = Watched()
    objects.answers[f"GET {denied}"] = Forbidden("no")
    live = Live(objects)
    looks = [looked(objects, live) for _ in range(3)]

    assert (len(looks[-1].workers), len(looks[-1].events)) == (rows, events)
    assert [request for request, _ in objects.requests].count(f"GET {denied}") == 1


@pytest.mark.parametrize("path", [PODS, EVENTS])
@pytest.mark.usefixtures("every_look")
def test_a_part_that_the_api_server_does_not_answer_comes_with_a_later_look(path):
    objects = Watched()
    live, before = Live(objects), dict(objects.answers)
    objects.answers[f"GET {path}"] = Unavailable("no answer")
    without = looked(objects, live)
    objects.answers = before
    later = looked(objects, live)

    assert not (without.workers and without.events)
    assert (len(later.workers), len(later.events)) == (4, 1)


@pytest.mark.usefixtures("every_look")
def test_a_worker_that_does_not_answer_keeps_its_row_and_blocks_nothing():
    objects = Watched()
    objects.answers[f"GET {PODS}/policy-1:8082/proxy/metrics"] = Unavailable("no endpoint")
    live = Live(objects)
    eventually(
        lambda: (
            [bool(one.figures) for one in looked(objects, live).workers]
            == [True, False, True, True]
        )
    )


def test_metrics_of_large_fleets_are_not_read():
    objects = Watched()
    assert objects.fleet is not None
    objects.fleet["spec"]["replicas"] = MOST_WORKERS + 1
    live = Live(objects)
    assert looked(objects, live).workers == ()
    assert not [request for request, _ in objects.requests if "pods" in request]


def test_the_clock_of_a_phase_that_is_over_is_not_shown():
    objects = Watched("applied")
    assert objects.weights is not None
    objects.weights["metadata"]["generation"] += 1
    objects.weights["spec"]["version"] = "14"

    shown = screen(objects, Detail(objects.moment))

    assert "not seen yet\n" in shown
    assert "not seen yet for" not in shown
    assert "serving 4/4, at 14: not seen by the operator yet" in shown


def test_workers_that_serve_an_older_version_count_as_serving():
    objects = Watched("staging")

    assert "serving 4/4, at 3: 0/4" in screen(objects, Detail(objects.moment))


# --- figures --------------------------------------------------------------------------------------


def test_figures_are_summed_over_the_engines_of_a_worker():
    assert figures_of(METRICS, 7.0) == Figures(
        at=7.0, phase="serving", version="3", running=7, held=2, tokens=1000.0,
        pauses=1.0, pauses_seconds=0.5, paused_seconds=0.0,
    )  # fmt: skip


@given(st.text(max_size=300) | st.builds(lambda a, b: f"{a}{METRICS}{b}", st.text(), st.text()))
def test_a_text_of_any_kind_can_be_read(text):
    found = figures_of(text, 0.0)

    assert found.version is None or found.version.isprintable()


@pytest.mark.parametrize(
    "line",
    [
        "rlfleet_worker_requests_held NaN",
        "rlfleet_worker_requests_held 1e999",
        "rlfleet_worker_requests_held 1e308\nrlfleet_worker_requests_held 1e308",
        "vllm:num_requests_running",
    ],
)
def test_figures_without_a_finite_number_are_left_out(line):
    found = figures_of(line, 0.0)

    assert (found.held, found.running) == (None, None)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, 10.0, None),
        (0.0, 10.0, 5.0),
        (10.0, 10.0, 0.0),
        (10.0, 0.0, None),  # the worker has restarted
    ],
)
def test_speed_needs_two_looks_at_one_process(before, now, expected):
    first = None if before is None else Figures(at=1.0, tokens=before)

    assert tokens_per_second(first, Figures(at=3.0, tokens=now)) == expected


def test_the_last_pause_stays_until_the_next_one_ends():
    first = Figures(at=1.0, pauses=2.0, pauses_seconds=1.0)
    second = Figures(at=2.0, pauses=4.0, pauses_seconds=2.0)

    assert last_pause_seconds(None, first, None) is None
    assert last_pause_seconds(first, second, None) == 0.5
    assert last_pause_seconds(second, second, 0.5) == 0.5
    assert last_pause_seconds(second, first, 0.5) == 0.5


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_ends_the_wait(monkeypatch):
    host, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with keys(wanted=True) as pressed:
            os.write(host, b"x")
            assert not pressed.pressed("q", 0.05)
            os.write(host, b"q")
            begun = time.monotonic()
            assert pressed.pressed("q", 30)
            assert time.monotonic() - begun < 10
    os.close(host)


def test_without_a_terminal_the_wait_lasts(monkeypatch):
    waits: list[Any] = []
    monkeypatch.setattr("time.sleep", waits.append)

    assert not Keys(is_open=False).pressed("q", 0.5)
    assert waits == [0.5]
