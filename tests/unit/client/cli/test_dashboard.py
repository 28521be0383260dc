"""`rlfleet dashboard`: the page of a look, and the server on the loopback that keeps it live."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from tests.support.cli import LEASE, PODS, SITUATIONS, Recorded, golden, run
from tests.support.fake_objects import condition
from tests.support.waiting import eventually
from tests.unit.client.cli.test_live import EVENTS, Watched
from tests.unit.client.cli.test_report import Page

from rlfleet.cli import cluster, dashboard, live_page
from rlfleet.cli.dashboard import _Reader
from rlfleet.cli.live_page import Sample, whole_page
from rlfleet.cli.loopback import Latest, Loopback
from rlfleet.errors import Forbidden, NotFound, Unavailable


def recorded(situation: str) -> Recorded:
    """Objects of a recording, whose workers have no metrics: their figures come when they come."""
    objects = Recorded(situation)
    for pod in objects.pods:
        pod["spec"]["containers"] = [{"name": "worker"}]
    return objects


def shown(monkeypatch: pytest.MonkeyPatch, objects: Recorded, looks: int = 1) -> str:
    """The content after some looks at recorded objects, at the moment of the recording."""
    monkeypatch.setattr(cluster, "now", lambda: objects.moment)
    reader = _Reader(objects)
    return [reader.content("policy") for _ in range(looks)][-1]


@pytest.mark.parametrize("situation", [one for one in SITUATIONS if one != "orphaned"])
def test_the_page_has_the_facts_of_watch_and_the_pictures_of_the_report(monkeypatch, situation):
    page = Page(shown(monkeypatch, recorded(situation)))

    assert page.open == []
    golden("\n".join(page.texts), f"dashboard.{situation}.txt")


def test_workers_have_rows_with_their_figures_and_the_last_minutes_are_drawn(monkeypatch):
    objects = Watched()
    monkeypatch.setattr(cluster, "now", lambda: objects.moment)
    reader = _Reader(objects)

    def has_figures() -> bool:
        return "serving</td><td>3</td><td>7</td>" in reader.content("policy")

    eventually(has_figures)
    text = reader.content("policy")

    assert text.count("<td>policy-") >= 4
    assert "<title>Requests running (blue) and held (orange)</title>" in text
    assert "cannot load" in text, "an Event"


@pytest.mark.parametrize(
    ("workers", "squares", "crosses"),
    [
        ({"serving": 38, "staging": 5, "broken": 2}, 38, 2),
        ({"serving": 290, "joining": 10}, 300, 0),
        ({"serving": 4999, "broken": 1}, 1000, 1),
    ],
)
def test_a_fleet_that_is_too_large_for_rows_has_a_square_for_each_worker(
    monkeypatch, workers, squares, crosses
):
    objects = recorded("applied")
    assert objects.fleet is not None
    replicas = sum(workers.values()) - workers.get("staging", 0)
    objects.fleet["spec"]["replicas"] = replicas
    objects.fleet["status"]["workers"] = workers | {"total": replicas}

    text = shown(monkeypatch, objects)
    (drawn,) = re.findall(r'<div class="cells".*?</div>', text)

    assert len(re.findall("[■□]", drawn)) == squares
    assert drawn.count("✗") == crosses
    for state, number in workers.items():
        assert f" {number} {state}</span>" in text
    assert ("up to 5 workers" in text) == (replicas > 1000)


def test_without_the_right_to_list_pods_there_are_squares(monkeypatch):
    objects = recorded("applied")
    objects.answers[f"GET {PODS}"] = Forbidden("pods is forbidden")

    assert "■■■■" in shown(monkeypatch, objects)


def test_a_plot_has_a_line_for_each_figure_that_is_known():
    samples = [
        Sample(at=float(at), tokens_per_second=100.0 * at, running=at, held=None) for at in range(5)
    ]

    drawn = live_page._throughput(samples)

    tokens, requests = re.findall(
        r'<polyline points="([^"]+)" style="[^"]*resuming|points="([^"]+)"[^>]*staging', drawn
    )
    assert [len(one.split()) for pair in (tokens, requests) for one in pair if one] == [5, 5]
    assert live_page._throughput(samples[:1]) == ""


def test_text_of_the_cluster_is_escaped(monkeypatch):
    objects = recorded("applied")
    objects.weights["status"]["conditions"] = [
        condition("Stalled", "WorkersFailing", 2, message="<img src=x>")
    ]
    bad = {"type": "Warning", "reason": "<b>", "message": "<script>alert(1)</script>"}
    objects.answers[f"GET {EVENTS}"] = {"items": [bad]}

    text = shown(monkeypatch, objects)

    assert "<img" not in text
    assert "<script" not in text
    assert "<b>" not in text
    assert "&lt;img src=x&gt;" in text


def test_a_dead_operator_is_reported_first(monkeypatch):
    objects = recorded("applied")
    objects.answers[f"GET {LEASE}"] = NotFound("gone")

    text = shown(monkeypatch, objects)

    assert '<section class="alarm"><p>No operator drives fleet policy: ' in text
    assert text.index("alarm") < text.index("<h2>")


def test_an_error_of_a_look_is_shown_above_what_was_seen_last(monkeypatch):
    objects = recorded("applied")
    monkeypatch.setattr(cluster, "now", lambda: objects.moment)
    reader = _Reader(objects)
    seen = reader.content("policy")
    objects.failures.append(Forbidden("the account lost its right"))

    text = reader.content("policy")

    assert "The fleet cannot be read: " in text
    assert "the account lost its right" in text
    assert text.endswith(seen)
    assert reader.content("policy") == seen


@pytest.mark.parametrize(
    ("error", "tries"), [(Forbidden("pods/log is forbidden"), 1), (Unavailable("away"), 3)]
)
def test_the_page_tries_once_to_read_logs_that_are_forbidden(monkeypatch, error, tries):
    objects = recorded("applied")
    log = f"GET {PODS}/policy-0/log"
    objects.answers[log] = error
    monkeypatch.setattr(dashboard, "_LOGS_EVERY_SECONDS", 0.0)

    text = shown(monkeypatch, objects, looks=3)

    assert "Staging" in text, "the rest is shown"
    assert [request for request, _ in objects.requests].count(log) == tries


def test_a_worker_may_log_anything(monkeypatch):
    objects = recorded("applied")
    odd = json.dumps({"message": "odd", "event": ["call"], "version": {}})
    objects.answers[f"GET {PODS}/policy-0/log"] = f"{objects.moment.isoformat()} {odd}\n"

    assert "Phases and workers" in shown(monkeypatch, objects)


# --- the server -----------------------------------------------------------------------------------


class Served:
    def __init__(self) -> None:
        self.latest = Latest()
        self.latest.put("<p>first</p>")
        self.server = Loopback(0, self.latest, partial(whole_page, "policy"))
        self.url = urlsplit(self.server.url)

    def get(self, path: str, host: str = "") -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port or 0, timeout=10)
        connection.request("GET", path, headers={"Host": host or self.url.netloc})
        return connection.getresponse()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()


def test_the_page_has_the_content_and_loads_nothing(served):
    answer = served.get(served.url.path)
    text = answer.read().decode()

    assert answer.status == 200
    assert "<main><p>first</p></main>" in text
    assert re.findall(r"(?:src|href)=|url\(|https?://", text) == []
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    (nonce,) = re.findall(r'<script nonce="([\w-]+)">', text)
    assert f"script-src 'nonce-{nonce}'" in policy
    assert (
        served.get(
            f"http://localhost:{served.url.port}{served.url.path}".partition(str(served.url.port))[
                2
            ],
            f"localhost:{served.url.port}",
        ).status
        == 200
    )


@pytest.mark.parametrize("path", ["/", "/events", "/x/", "/x/events", "{token}x/", "{token}/other"])
def test_without_the_token_there_is_nothing(served, path):
    token = served.url.path.rstrip("/")

    assert served.get(path.format(token=token)).status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "evil.example:{port}", "[::1]:{port}"]
)
def test_the_name_of_another_host_gets_nothing(served, host):
    """A page of another site may have its name resolved to 127.0.0.1."""
    for path in (served.url.path, f"{served.url.path}events"):
        assert served.get(path, host.format(port=served.url.port)).status == 403


def test_only_the_loopback_is_bound(served):
    with closing(socket.create_connection(("127.0.0.1", served.url.port or 0))) as peer:
        assert peer.getpeername()[0] == "127.0.0.1"
    assert served.server._server.server_address[0] == "127.0.0.1"


def test_browsers_may_leave_without_a_traceback(served, capfd):
    served.latest.put("x" * 10_000_000)
    port, before = served.url.port or 0, set(threading.enumerate())
    asks = f"GET {served.url.path} HTTP/1.1\r\nHost: {served.url.netloc}\r\n\r\n".encode()
    for sent in (b"", b"GET /", asks):
        with closing(socket.create_connection(("127.0.0.1", port))) as browser:
            browser.sendall(sent)
            if sent == asks:
                browser.recv(1)
            browser.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # reset

    eventually(lambda: not set(threading.enumerate()) - before)
    assert capfd.readouterr().err == ""


def event(stream: http.client.HTTPResponse) -> str:
    line = stream.readline().decode()
    assert stream.readline() == b"\n"
    name, _, data = line.partition(": ")
    assert name == "data"
    text: str = json.loads(data)
    return text


def test_each_content_is_an_event(served):
    stream = served.get(f"{served.url.path}events")

    assert stream.headers["Content-Type"] == "text/event-stream"
    assert event(stream) == "<p>first</p>"
    served.latest.put("<p>first</p>")  # no event: it is the same
    served.latest.put("<p>second\n\n</p>")
    assert event(stream) == "<p>second\n\n</p>"


def test_streams_are_bounded_and_end_with_their_browser(served):
    streams = [served.get(f"{served.url.path}events") for _ in range(8)]
    assert [one.status for one in streams] == [200] * 8
    assert served.get(f"{served.url.path}events").status == 503

    for one in streams:
        one.close()

    def is_free() -> bool:
        served.latest.put(f"<p>{time.monotonic()}</p>")  # writing notices it
        return served.get(f"{served.url.path}events").status == 200

    eventually(is_free)


# --- the verb -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "opened"), [([], 1), (["--no-browser"], 0)])
def test_the_verb_prints_the_address_and_ends_with_ctrl_c(monkeypatch, options, opened):
    shown: Queue[tuple[str, str]] = Queue()

    def opens(page: str) -> None:
        file = Path(url2pathname(urlsplit(page).path))
        assert file.parent.stat().st_mode & 0o077 == 0, "its address has the token"
        shown.put((page, file.read_text()))

    def interrupt(_: float) -> None:
        if opened:
            seen.append(shown.get(timeout=10))
        raise KeyboardInterrupt

    seen: list[tuple[str, str]] = []
    monkeypatch.setattr("webbrowser.open", opens)
    monkeypatch.setattr(dashboard, "_pause", interrupt)

    code, out, _ = run(monkeypatch, recorded("applied"), "dashboard", "policy", *options)

    assert code == 0
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]{40,}/", out)
    assert len(seen) == opened
    assert shown.empty()
    for page, text in seen:
        assert url not in page, "all users of the machine see command lines"
        assert f"url={url}" in text


def test_a_port_that_is_taken_is_a_wrong_command_line(monkeypatch):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = str(other.getsockname()[1])
        taken: Any = run(monkeypatch, recorded("applied"), "dashboard", "policy", "--port", port)

    assert taken[0] == 2
    assert "cannot be used" in " ".join(taken[2].split())
