"""`rlfleet report`: a page that needs nothing else."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser

import pytest
from tests.support.cli import SITUATIONS, Recorded, golden, run
from tests.support.fake_objects import condition

_VOID = {"meta", "rect", "line"}


class Page(HTMLParser):
    """The open tags, and the text of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in _VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_page_has_the_facts_of_the_rollout(monkeypatch, situation):
    code, out, _ = run(monkeypatch, Recorded(situation), "report")

    assert code == 0
    page = Page(out)
    assert page.open == []
    golden("\n".join(page.texts), f"report.{situation}.txt")


def test_on_a_phone_each_cell_of_a_table_with_messages_has_its_column(monkeypatch):
    _, out, _ = run(monkeypatch, Recorded("stalled"), "report")

    tables = [part for part in out.split("<table>") if "<th>Message</th>" in part]
    assert tables
    for part in tables:
        rows = part.partition("</table>")[0]
        names = re.findall("<th>(.*?)</th>", rows)
        cells = re.findall('<td data-column="(.*?)">', rows)
        assert cells == names * rows.count('<td data-column="Message">')
        assert "<td>" not in rows


def test_the_page_has_the_bytes_that_workers_have_read(monkeypatch):
    reads = {"bytes": 3_200_000_000, "workers": 1, "peerBytes": 48_000_000_000, "peerWorkers": 3}
    reads |= {"publishedBytes": 320_000_000, "sizeBytes": 16_000_000_000}
    _, out, _ = run(monkeypatch, Recorded("applied", storeReads=reads), "report")

    assert "3.2 GB by 1 worker" in Page(out).texts
    assert "48 GB by 3 workers" in Page(out).texts
    assert "0.32 GB, 2.0% of the weights" in Page(out).texts


def test_the_page_has_the_way_of_the_loads(monkeypatch):
    why = "policy-2: more than 5% of the elements have changed"
    effect = {"version": "2", "inPlaceWorkers": 31, "fullWorkers": 1, "whyFull": why}
    _, out, _ = run(monkeypatch, Recorded("applied", effect=effect), "report")

    texts = Page(out).texts
    assert {"by 31 workers", "by 1 worker", f"A load was a full one: {why}"} <= {*texts}


def test_the_page_has_the_bytes_that_a_collector_has_freed_and_kept(monkeypatch):
    objects = Recorded("applied")
    said = ["deleted 1 version (16 GB)", "deleted 2 versions (32 GB); 5 versions (80 GB) stay"]
    events = [
        {"lastTimestamp": f"2026-01-0{day}T00:00:00Z", "message": message}
        for day, message in enumerate(said, 1)
    ]
    objects.answers["GET /api/v1/namespaces/rl/events"] = {"items": events[::-1]}
    _, out, _ = run(monkeypatch, objects, "report")

    assert f"2026-01-02T00:00:00Z: {said[1]}" in Page(out).texts


def test_the_page_loads_no_other_resource(monkeypatch):
    _, out, _ = run(monkeypatch, Recorded("stalled"), "report")

    assert re.findall(r"(?:src|href)=|url\(|https?://|<script", out) == []


def test_the_timeline_is_drawn_to_scale(monkeypatch):
    timings = {"stageSeconds": 6.0, "pauseSeconds": 1.0, "loadSeconds": 2.0, "resumeSeconds": 1.0}

    _, out, _ = run(monkeypatch, Recorded("applied", timings=timings), "report")

    drawn = out.split("Durations of the past")[0]
    bars = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
    assert [(float(x), float(w)) for x, w in bars] == [
        (110, 312), (422, 52), (474, 104), (578, 52),
    ]  # fmt: skip


def test_text_from_the_cluster_is_escaped(monkeypatch):
    objects = Recorded("applied")
    bad = condition("Stalled", "WorkersFailing", 2, message="<img src=x> & more")
    assert objects.weights is not None
    objects.weights["status"]["conditions"] = [bad]

    _, out, _ = run(monkeypatch, objects, "report")

    assert "<img" not in out
    assert "&lt;img src=x&gt; &amp; more" in out


def test_a_rollout_that_has_not_started_has_a_page(monkeypatch):
    objects = Recorded("applied")
    assert objects.weights is not None
    objects.weights["status"] = {}
    objects.fleet = None

    _, out, _ = run(monkeypatch, objects, "report")

    for words in ("not seen by the operator", "no phase", "No rollout has ended", "no condition"):
        assert words in out


def test_the_page_is_written_to_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "1000")  # Typer draws a frame, which cuts words
    file = tmp_path / "report.html"

    code, out, _ = run(monkeypatch, Recorded("applied"), "report", "--file", str(file))
    wrong, _, err = run(
        monkeypatch, Recorded("applied"), "report", "--file", str(tmp_path / "a" / "b")
    )

    assert code == 0
    assert str(file) in out
    assert file.read_text().startswith("<!doctype html>")
    assert wrong == 2
    assert "cannot be written" in " ".join(err.split())


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_report_begins_with_the_sentence_of_explain_where_something_is_stalled(
    monkeypatch, situation
):
    objects = Recorded(situation)
    _, out, _ = run(monkeypatch, objects, "report")
    code, said, _ = run(monkeypatch, objects, "explain", "--output", "json")
    assert code == 0
    found = [one for one in (objects.weights, objects.fleet) if one]
    is_stalled = any(
        (c["type"], c["status"]) == ("Stalled", "True")
        for one in found
        for c in one["status"].get("conditions", ())
    )

    before, mark, after = out.partition('<section class="alarm">')
    assert bool(mark) is is_stalled
    assert "<dl>" not in before or not is_stalled
    if is_stalled:
        assert after.startswith(f"<p>{escape(json.loads(said)['summary'])}</p>")
