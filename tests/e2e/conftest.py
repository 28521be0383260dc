"""One cluster, one operator, one fleet of two real workers for the whole run.

A test that breaks the fleet leaves it whole: `fleet` waits until it is ready before every test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import write_checkpoints
from tests.support.waiting import eventually

import stack
from demo.sampler import Samples, sample
from devcluster import Cluster, preflight

NAMESPACE = "rl"
FLEET = "policy"
WORKERS = 2
READY_SECONDS = 180
STEPS = 30


@dataclass
class Fleet:
    """The shared fleet, as a person with kubectl meets it."""

    cluster: Cluster
    weights: Path
    _steps: Iterator[int]

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True):
        return self.cluster.kubectl("-n", NAMESPACE, *arguments, stdin=stdin, check=check)

    def get(self, what: str) -> dict[str, Any]:
        return json.loads(self.kubectl("get", what, "-o", "json").stdout)

    def next_step(self) -> int:
        """Number of a checkpoint that lies on the volume and was not used yet."""
        return next(self._steps)

    def folder(self, step: int) -> Path:
        return self.weights / f"step_{step}"

    def publish(self, version: str, **spec: Any) -> None:
        patch = json.dumps({"spec": {"version": version, **spec}})
        self.kubectl("patch", "wv", FLEET, "--type=merge", "-p", patch)

    def wait_ready(self, what: str = f"wv/{FLEET}", seconds: int = READY_SECONDS) -> None:
        self.kubectl("wait", "--for=condition=Ready", what, f"--timeout={seconds}s")

    def roll_out(self, step: int) -> dict[str, Any]:
        """Publish a good checkpoint and wait, as a trainer does. Returns: the status."""
        self.publish(str(step))
        self.wait_ready()
        return self.get(f"wv/{FLEET}")["status"]

    def condition(self, kind: str, what: str = f"wv/{FLEET}") -> dict[str, Any] | None:
        found = self.get(what)
        conditions = found.get("status", {}).get("conditions", ())
        generation = found["metadata"]["generation"]
        return next(
            (c for c in conditions if c["type"] == kind and c["observedGeneration"] == generation),
            None,
        )

    def eventually(self, holds: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Wait until something holds; returns it."""

        def describe() -> str:
            return f"{what}\n{self.kubectl('describe', 'ifl,wv,pods').stdout[-6000:]}"

        return eventually(holds, within_seconds=seconds, describe=describe)

    def url(self) -> str:
        return f"http://127.0.0.1:{self.cluster.forward(NAMESPACE, f'service/{FLEET}', 8000)}"

    def while_sampling(self, file: Path, work: Callable[[], Any]) -> Samples:
        """Do something while clients generate through the Service."""

        async def both() -> Samples:
            samples, stop = Samples(file), asyncio.Event()
            model = self.get(f"ifl/{FLEET}")["spec"]["model"]["name"]
            clients = asyncio.create_task(sample(self.url(), model, samples, stop))
            try:
                await asyncio.to_thread(work)
            finally:
                stop.set()
                await clients
            return samples

        return asyncio.run(both())


def checkpoints(folder: Path) -> dict[Path, Mapping[str, Any]]:
    """Everything that the tests publish, good and bad."""
    good = {folder / f"step_{n}": {"seed": n} for n in range(1, STEPS)}
    return {
        folder / "base": {"seed": 0},
        folder / "wider": {"seed": 1, "shape": {"hidden": 128}},
        folder / "deeper": {"seed": 1, "shape": {"layers": 3}},
        **good,
    }


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    found = preflight.problems("node")
    if found and os.environ.get("CI"):
        pytest.fail(preflight.describe(found), pytrace=False)
    if found:
        pytest.skip(preflight.describe(found))
    with Cluster.start(mounts=stack.mounts()) as cluster:
        stack.load_images(cluster)
        stack.install(cluster)
        yield cluster


@pytest.fixture(scope="session")
def shared_fleet(cluster: Cluster) -> Fleet:
    folder = cluster.folder / "weights"
    folder.mkdir()
    write_checkpoints(checkpoints(folder))
    folder.chmod(0o755)
    cluster.kubectl("create", "namespace", NAMESPACE)
    fleet = Fleet(cluster, folder, itertools.count(2))
    objects = [
        *stack.weights_volume(folder, NAMESPACE),
        stack.fleet_manifest(FLEET, replicas=WORKERS),
        stack.weights_manifest(FLEET, fleet=FLEET, version="1"),
    ]
    fleet.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    return fleet


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    shared_fleet.wait_ready()
    shared_fleet.wait_ready(f"ifl/{FLEET}")
    return shared_fleet
