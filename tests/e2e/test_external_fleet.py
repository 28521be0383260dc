"""A fleet whose trainer drives the workers itself, by the routes that it knows."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
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
    assert versions(fleet) == ("base", "base")
    yield fleet
    fleet.kubectl("delete", "ifl", NAME)


def versions(fleet: Fleet) -> tuple[str, str]:
    status = fleet.get(f"ifl/{NAME}")["status"]
    return status.get("appliedVersion", ""), status["applied"]["version"]


def restart(fleet: Fleet) -> None:
    """Kill the worker, and wait until it serves again. The new process remembers no version."""
    pod = f"{NAME}-0"
    signal_worker(fleet, pod, "worker", "SIGKILL")
    fleet.eventually(lambda: not fleet.version_of(pod), "it is gone")
    fleet.eventually(
        lambda: fleet.phase_of(pod) == "serving", "it serves again", seconds=STARTS_SECONDS
    )


def update(fleet: Fleet, step: int) -> None:
    """Load a checkpoint as its trainer does, and wait until the status shows it."""
    Trainer(fleet).update(step)
    fleet.eventually(lambda: versions(fleet) == (str(step),) * 2, f"version {step} is mirrored")


def test_the_status_mirrors_its_versions_and_new_workers_are_updated_to_them(
    external: Fleet,
) -> None:
    update(external, 3)
    update(external, 5)

    restart(external)

    assert external.version_of(f"{NAME}-0") == "5"


def test_a_directory_that_is_written_again_is_reported_after_a_restart(external: Fleet) -> None:
    update(external, 7)
    update(external, 8)
    restart(external)
    shutil.rmtree(external.folder(7))
    shutil.copytree(external.folder(9), external.folder(7))

    Trainer(external).update(7)

    fleet = f"ifl/{NAME}"
    stalled = external.eventually(lambda: external.condition("Stalled", fleet), "Stalled")
    assert stalled["reason"] == "VersionReused"
    assert external.condition("Ready", fleet)["status"] == "False"
    _, recorded = versions(external)
    assert recorded == "8", "the applied record stays"
    Trainer(external).update(10)
    external.wait_ready(fleet)
    assert versions(external) == ("10", "10")


def test_a_weight_version_on_it_is_refused_with_a_reason(external: Fleet) -> None:
    pointer = stack.weights_manifest("stray", fleet=NAME, version="1")
    external.kubectl("apply", "-f", "-", stdin=json.dumps(pointer))
    stalled = external.eventually(lambda: external.condition("Stalled", "wv/stray"), "Stalled")
    external.kubectl("delete", "wv", "stray")

    assert stalled["reason"] == "ExternallyManaged"
    assert "spec.weights.management: External" in stalled["message"]
