"""The collector's process: its exit code, its Events, and its end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.collector import BEAT, a_fleet, a_weight_version, date, names_in, write_versions

from fleet_collector import main
from fleet_collector.collection import MOST_BYTES
from fleet_collector.settings import Settings, parse_settings
from rlfleet.bounded_answers import TooLarge
from rlfleet.errors import Forbidden


class FakeApi:
    """The API server of one namespace."""

    def __init__(self, weights: dict[str, Any], *, refuses: str = "") -> None:
        self.lists = {"weightversions": [weights], "inferencefleets": [a_fleet()]}
        self.most_objects = 100
        """An answer has room for this number."""
        self._beats = 0
        self._refuses = refuses
        self.events: list[dict[str, Any]] = []

    def call(self, _: str, path: str, params: Any = None, body: Any = None) -> dict[str, Any]:
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
        begin, limit = int((params or {}).get("continue", 0)), int((params or {})["limit"])
        if limit > self.most_objects:
            raise TooLarge("the answer has too many bytes")
        found = self.lists[plural]
        follow = str(begin + limit) if begin + limit < len(found) else ""
        return {"metadata": {"continue": follow}, "items": found[begin : begin + limit]}


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


def test_roots_are_directories_and_prefixes_in_stores() -> None:
    settings = parse_settings(["--namespaces=rl", "--roots=/weights, s3://lab/runs,gs://lab"])

    assert settings.roots == ("/weights", "s3://lab/runs", "gs://lab")


@pytest.mark.parametrize(
    "arguments", [["--roots=/weights"], ["--namespaces=rl"], ["--namespaces=rl", "--roots=weights"]]
)
def test_namespaces_and_roots_have_no_default(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_settings(arguments)
    assert "--" in capsys.readouterr().err


def test_a_list_comes_in_pages_of_as_many_objects_as_an_answer_can_have(
    started, settings: Settings, folder: Path
) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))
    api.most_objects = 2
    # The last one needs a version, so that it must have been read.
    api.lists["inferencefleets"] = [a_fleet(name=f"fleet-{n}") for n in range(8)]
    api.lists["inferencefleets"].append(a_fleet(f"{folder}/step_1", name="last"))

    assert started(settings, api) == 0
    assert names_in(folder) == ["step_1", "step_3"]


@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
def test_a_spec_that_was_too_large_to_be_read_keeps_all_versions(
    started, settings: Settings, folder: Path, plural: str
) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))
    large = {"metadata": {"name": "large", "namespace": "rl", "generation": 1}}
    api.lists[plural].append(
        large | {"status": {"observedGeneration": 1, "operator": "system/rlfleet"}}
    )

    assert started(settings, api) == main.EXIT_ATTENTION
    assert len(names_in(folder)) == 3
    (event,) = api.events
    assert event["reason"] == "OldVersionsNotDeleted"
    assert "rl/large" in event["message"]


def test_more_than_the_memory_of_a_run_keeps_all_versions(
    started, settings: Settings, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))
    api.lists["inferencefleets"] += [
        a_fleet(name=f"large-{n}", text="a" * 60_000) for n in range(MOST_BYTES // 60_000)
    ]

    assert started(settings, api) == main.EXIT_ATTENTION
    assert len(names_in(folder)) == 3
    assert "namespaces/rl/inferencefleets" in caplog.text


@pytest.mark.parametrize("levels", [900, 985, 2000])
def test_a_spec_of_any_depth_is_read_or_keeps_all_versions(
    started, settings: Settings, folder: Path, levels: int
) -> None:
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))
    nested: Any = f"{folder}/step_1"
    for _ in range(levels):
        nested = [nested]
    api.lists["inferencefleets"].append(a_fleet(name="deep"))
    api.lists["inferencefleets"][-1]["spec"]["podOverlay"] = nested

    code = started(settings, api)
    read = code == 0 and names_in(folder) == ["step_1", "step_3"]
    kept = code == main.EXIT_ATTENTION and len(names_in(folder)) == 3
    assert read or kept


def test_a_version_with_directories_of_any_depth_holds_back_no_other(
    started, settings: Settings, folder: Path
) -> None:
    at = os.open(folder / "step_1", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    api = FakeApi(a_weight_version(folder, "3", retention={"keep": 1}))

    try:
        started(settings, api)
        assert names_in(folder) == ["step_1", "step_3"]
    finally:
        subprocess.run(["rm", "-r", str(folder / "step_1")], check=True)  # shutil cannot
