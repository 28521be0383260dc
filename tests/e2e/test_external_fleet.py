"""A fleet whose trainer drives the workers itself, by the routes that it knows."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator

import httpx
import pytest

import stack
from chaos.fleet import Fleet
from chaos.processes import signal_worker

pytestmark = pytest.mark.long
NAME = "external"
STARTS_SECONDS = 240


class Trainer:
    """Fans out pause, update and resume, as prime-rl's orchestrator does."""

    def __init__(self, fleet: Fleet) -> None:
        secret = fleet.get(f"secret/{NAME}-admin-token")["data"]
        (encoded,) = secret.values()
        token = base64.b64decode(encoded).decode().strip()
        self._headers = {"Authorization": f"Bearer {token}"}
        self._fleet = fleet

    def update(self, step: int) -> None:
        for path, body in (
            ("/pause?mode=keep&clear_cache=true", None),
            ("/update_weights", {"weight_dir": f"/weights/step_{step}"}),
            ("/resume", None),
        ):
            for pod in sorted(self._fleet.pods()):
                self._post(pod, path, body).raise_for_status()

    def _post(self, pod: str, path: str, body: object) -> httpx.Response:
        port = self._fleet.cluster.forward(self._fleet.namespace, f"pod/{pod}", 8081)
        url = f"http://127.0.0.1:{port}{path}"
        return httpx.post(url, json=body, headers=self._headers, timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def external(shared_fleet: Fleet) -> Iterator[Fleet]:
    fleet = Fleet(shared_fleet.cluster, shared_fleet.weights, itertools.count(1), name=NAME)
    manifest = stack.fleet_manifest(NAME, replicas=1)
    manifest["spec"]["weights"]["management"] = "External"
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    fleet.wait_ready(f"ifl/{NAME}", seconds=STARTS_SECONDS)
    yield fleet
    fleet.kubectl("delete", "ifl", NAME)


def versions(fleet: Fleet) -> tuple[str, str]:
    status = fleet.get(f"ifl/{NAME}")["status"]
    return status.get("appliedVersion", ""), status["applied"]["version"]


def test_its_versions_are_mirrored_and_newcomers_are_brought_to_them(external: Fleet) -> None:
    assert versions(external) == ("base", "base")

    Trainer(external).update(3)
    external.eventually(lambda: versions(external) == ("3", "3"), "version 3 is mirrored")
    Trainer(external).update(5)
    external.eventually(lambda: versions(external) == ("5", "5"), "version 5 is mirrored")

    restarted = f"{NAME}-0"
    signal_worker(external, restarted, "worker", "SIGKILL")
    external.eventually(lambda: not external.version_of(restarted), "it is gone")
    external.eventually(
        lambda: external.phase_of(restarted) == "serving",
        "it serves again",
        seconds=STARTS_SECONDS,
    )
    assert external.version_of(restarted) == "5"


def test_a_weight_version_on_it_is_refused_in_words(external: Fleet) -> None:
    pointer = stack.weights_manifest("stray", fleet=NAME, version="1")
    external.kubectl("apply", "-f", "-", stdin=json.dumps(pointer))
    stalled = external.eventually(lambda: external.condition("Stalled", "wv/stray"), "Stalled")
    external.kubectl("delete", "wv", "stray")

    assert stalled["reason"] == "ExternallyManaged"
    assert "spec.weights.management: External" in stalled["message"]
