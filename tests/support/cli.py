"""Run verbs of the command line on recorded objects and a fake API server, against golden texts.

`RLFLEET_GOLDEN=write` writes the golden texts again.
"""

from __future__ import annotations

import copy
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.fake_objects import FakeObjects, condition
from typer.testing import CliRunner

from rlfleet.cli import cluster
from rlfleet.cli.app import app
from rlfleet.errors import NotFound
from rlfleet.ports import Json

CLI = Path(__file__).parents[1] / "unit" / "client" / "cli"
NOW = datetime(2026, 1, 1, 0, 18, tzinfo=UTC)
PODS = "/api/v1/namespaces/rl/pods"
TRUNCATED = "2 of 4 workers cannot take version 3: model.safetensors is 12 bytes short"


class FakeApi(FakeObjects):
    """Answers other paths from a table: `METHOD path` → an object, a text or an error.

    An answer may be a function of the parameters and the body.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.answers: dict[str, Any] = {}

    def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        media: str = "",
    ) -> Json:
        found = self._answer(method, path, params, body)
        assert isinstance(found, dict)
        return found

    def text(self, path: str, params: dict[str, str] | None = None) -> str:
        return str(self._answer("GET", path, params, None))

    def _answer(
        self, method: str, path: str, params: dict[str, str] | None, body: Json | None
    ) -> Any:
        self._serve(f"{method} {path}", body)
        found = self.answers.get(f"{method} {path}", NotFound(f"there is no {path}"))
        found = found(params or {}, body) if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return copy.deepcopy(found)


class Recorded(FakeApi):
    """The fleet and the WeightVersion of a recording, and four pods."""

    def __init__(self, situation: str, **status: Any) -> None:
        super().__init__()
        recorded = CLI / "recorded"
        fleet, weights = yaml.safe_load_all((recorded / f"{situation}.yaml").read_text())
        self.fleet, self.weights = fleet, weights
        weights["status"] |= status
        self._changed("MODIFIED")
        self.pods: list[Json] = [*yaml.safe_load_all((recorded / "pods.yaml").read_text())]
        self.answers[f"GET {PODS}"] = lambda *_: {"items": self.pods}


def stalled() -> Recorded:
    """The staging of version 3 has found a truncated file."""
    found = Recorded("staging")
    assert found.weights is not None
    generation = found.weights["metadata"]["generation"]
    found.weights["status"]["conditions"].append(
        condition("Stalled", "CheckpointTruncated", generation, message=TRUNCATED)
    )
    return found


def paused() -> Recorded:
    """All four workers hold their requests."""
    found = Recorded("staging", phase="Loading")
    assert found.weights is not None
    status = found.weights["status"]
    status["phaseStartedAt"] = "2026-01-01T00:17:58+00:00"
    status["timings"] = {"pauseSeconds": 0.25}
    status["workers"] |= {"paused": 4}
    assert found.fleet is not None
    found.fleet["status"]["workers"] = {"total": 4, "paused": 1, "loading": 3}
    return found


SITUATIONS = {
    "applied": lambda: Recorded("applied"),
    "staging": lambda: Recorded("staging"),
    "suspended": lambda: Recorded("suspended"),
    "stalled": stalled,
    "paused": paused,
}


def run(
    monkeypatch: pytest.MonkeyPatch, objects: FakeObjects, *arguments: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    monkeypatch.setattr(cluster, "connect", lambda *_, **__: objects)
    monkeypatch.setattr(cluster, "now", lambda: NOW)
    done = CliRunner().invoke(app, list(arguments), prog_name="rlfleet")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def clean(text: str) -> str:
    """The text without spaces at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def golden(text: str, name: str, folder: Path = CLI / "golden") -> None:
    """Compare a text with its golden file."""
    file = folder / name
    if os.environ.get("RLFLEET_GOLDEN") == "write":
        file.write_text(clean(text))
    assert clean(text) == file.read_text()
