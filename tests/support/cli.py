"""Run verbs of the command line on recorded objects and a fake API server, against golden texts.

`RLFLEET_GOLDEN=write` writes the golden texts and the recordings again: the recordings first, by
tests/model/runtime/test_recordings.py.
"""

from __future__ import annotations

import copy
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.fake_objects import FakeObjects
from tests.support.situations import Situation
from typer.testing import CliRunner

from rlfleet.cli import cluster
from rlfleet.cli.app import app
from rlfleet.errors import NotFound
from rlfleet.ports import Json

CLI = Path(__file__).parents[1] / "unit" / "client" / "cli"
RECORDED = CLI / "recorded"
NOW = datetime(2026, 1, 1, 0, 18, tzinfo=UTC)
PODS = "/api/v1/namespaces/rl/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/operator"
"""That of the operator which has written the recordings."""
TRUNCATED = "2 workers cannot load version 3 (/weights/step_3)"


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
    """The objects of a recording (`tests/support/situations.py`), and four pods."""

    def __init__(self, name: str, **status: Any) -> None:
        super().__init__()
        found = Situation.read((RECORDED / f"{name}.yaml").read_text())
        self.moment, self.fleet = found.now, found.fleet
        self.weights = None
        if found.weights is not None:
            self.weights = found.weights
            self.weights["status"] |= status
            self._changed("MODIFIED")
        pods = [*yaml.safe_load_all((RECORDED / "pods.yaml").read_text())]
        self.pods: list[Json] = pods[: found.fleet["spec"]["replicas"] if found.fleet else 4]
        operator = {
            "metadata": {"name": "rlfleet-abc", "namespace": "rlfleet-system", "uid": "o"},
            "spec": {"containers": [{"name": "operator"}]},
        }
        self.answers[f"GET {PODS}"] = lambda *_: {"items": self.pods if self.fleet else []}
        self.answers["GET /api/v1/pods"] = {"items": [operator]}
        self.answers[f"GET {LEASE}"] = {
            "spec": {"holderIdentity": "rlfleet-abc", "renewTime": self.moment.isoformat()}
        }
        self.answers["GET /api/v1/namespaces/rl/serviceaccounts/default"] = {}
        self.answers["GET /api/v1/namespaces/rl/events"] = {"items": []}
        self.answers["GET /apis/storage.k8s.io/v1/storageclasses"] = {"items": []}
        log = "/api/v1/namespaces/rlfleet-system/pods/rlfleet-abc/log"
        self.answers[f"GET {log}"] = "\n".join(found.log)
        for pod in self.pods:
            self.answers[f"GET {PODS}/{pod['metadata']['name']}/log"] = ""


SITUATIONS = sorted(file.stem for file in RECORDED.glob("*.yaml") if file.stem != "pods")


def run(
    monkeypatch: pytest.MonkeyPatch, objects: FakeObjects, *arguments: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, at the moment of a recording."""
    moment = getattr(objects, "moment", NOW)
    monkeypatch.setattr(cluster, "connect", lambda *_, **__: objects)
    monkeypatch.setattr(cluster, "now", lambda: moment)
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
