"""The collector's process: its exit code, its Events, and its end by a signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.collector import BEAT, a_fleet, a_weight_version, date, names_in, write_versions

from fleet_collector import main
from fleet_collector.settings import Settings, parse_settings
from rlfleet.errors import Forbidden


class FakeApi:
    """The API server of one namespace."""

    def __init__(self, weights: dict[str, Any], *, refuses: str = "") -> None:
        self._lists = {"weightversions": [weights], "inferencefleets": [a_fleet()]}
        self._beats = 0
        self._refuses = refuses
        self.events: list[dict[str, Any]] = []

    def call(self, _: str, path: str, __: Any = None, body: Any = None) -> dict[str, Any]:
        plural = path.rpartition("/")[2]
        if plural == self._refuses:
            raise Forbidden("no right")
        if body is not None:
            self.events.append(body)
            return body
        if plural == "leases":
            self._beats += 1
            namespace, _, name = BEAT.partition("/")
            metadata = {"namespace": namespace, "name": name}
            return {"items": [{"metadata": metadata, "spec": {"renewTime": str(self._beats)}}]}
        return {"items": self._lists[plural]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_versions(tmp_path / "run-7", 1, 2, 3)
    date(tmp_path / "run-7")
    return tmp_path / "run-7"


@pytest.fixture
def settings(folder: Path) -> Settings:
    return parse_settings(["--namespaces=rl", f"--roots={folder.parent}", "--log-format=text"])


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch):
    """Starts the process without a cluster. Returns: its exit code."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(main.time, "sleep", lambda _: None)
    monkeypatch.setattr(main, "load_access", lambda: None)
    monkeypatch.setattr(main.logging, "basicConfig", lambda **_: None)

    def run(settings: Settings, api: FakeApi) -> int:
        monkeypatch.setattr(main, "BlockingKube", lambda *_: api)
        return main.run(settings)

    yield run
    signal.signal(signal.SIGTERM, before)


def test_an_event_says_how_much_was_deleted(started, settings: Settings, folder: Path) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))

    assert started(settings, api) == 0
    assert names_in(folder) == ["step_3"]
    (event,) = api.events
    assert (event["type"], event["reason"]) == ("Normal", "OldVersionsDeleted")
    assert event["involvedObject"]["uid"] == "u-1"
    assert "2 versions" in event["message"]


def test_a_problem_ends_with_its_exit_code_and_an_event(
    started, settings: Settings, folder: Path
) -> None:
    api = FakeApi(a_weight_version(folder, "9", retention={"keep": 1}))

    assert started(settings, api) == main.EXIT_ATTENTION
    assert [e["reason"] for e in api.events] == ["OldVersionsNotDeleted"]


def test_a_rule_without_a_folder_gets_an_event_too(
    started, settings: Settings, folder: Path
) -> None:
    weights = a_weight_version(folder, "3", retention={"keep": 1})
    weights["spec"]["source"] = {"path": f"{folder}/step_3"}
    api = FakeApi(weights)

    assert started(settings, api) == main.EXIT_ATTENTION
    (event,) = api.events
    assert event["reason"] == "OldVersionsNotDeleted"
    assert "{version}" in event["message"]


def test_a_rule_of_another_namespace_deletes_nothing(
    started, settings: Settings, folder: Path
) -> None:
    theirs = a_weight_version(folder, "3", retention={"keep": 1})
    theirs["metadata"]["namespace"] = "eval"

    assert started(settings, FakeApi(theirs)) == 0
    assert len(names_in(folder)) == 3


def test_a_cause_that_passes_ends_with_0(started, settings: Settings, folder: Path) -> None:
    weights = a_weight_version(folder, "3", retention={"keep": 1})
    weights["metadata"]["generation"] = 6
    api = FakeApi(weights)

    assert started(settings, api) == 0
    assert [e["reason"] for e in api.events] == ["OldVersionsWait"]


@pytest.mark.parametrize(("refused", "code", "left"), [("inferencefleets", 1, 3), ("events", 0, 1)])
def test_without_the_right_to_read_nothing_is_deleted(
    started, settings: Settings, folder: Path, refused: str, code: int, left: int
) -> None:
    weights = a_weight_version(folder, "3", retention={"keep": 1})

    assert started(settings, FakeApi(weights, refuses=refused)) == code
    assert len(names_in(folder)) == left


def test_a_dry_run_posts_no_event(started, settings: Settings, folder: Path) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))

    assert started(settings.model_copy(update={"dry_run": True}), api) == 0
    assert (api.events, len(names_in(folder))) == ([], 3)


def test_versions_are_back_after_a_signal(
    started, settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        started(settings, FakeApi(a_weight_version(folder, "3", retention={"keep": 1})))

    assert names_in(folder) == ["step_1", "step_2", "step_3"]


@pytest.mark.parametrize(
    "arguments", [["--roots=/weights"], ["--namespaces=rl"], ["--namespaces=rl", "--roots=weights"]]
)
def test_namespaces_and_roots_have_no_default(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_settings(arguments)
    assert "--" in capsys.readouterr().err
