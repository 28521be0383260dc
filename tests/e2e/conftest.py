"""One cluster, one operator, one fleet of two real workers for the whole run.

A test that breaks the fleet leaves it whole: `fleet` waits until it is ready before every test. It also
publishes a good version if a failed test left a bad or a suspended one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import stack
from chaos.fleet import NAMESPACE, Fleet
from chaos.setup import start_fleet
from devcluster import Cluster, preflight

__all__ = ["FLEET", "NAMESPACE", "WORKERS", "Fleet"]

FLEET = "policy"
WORKERS = 2
STEPS = 120


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the test that loses a node last: a drain needs another node for the workers."""
    items.sort(key=lambda item: item.get_closest_marker("loses_a_node") is not None)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    found = preflight.problems("node")
    if found and os.environ.get("CI"):
        pytest.fail(preflight.describe(found), pytrace=False)
    if found:
        pytest.skip(preflight.describe(found))
    with Cluster.start(nodes=2, mounts=stack.mounts("router")) as cluster:
        stack.load_images(cluster)
        stack.install(cluster)
        yield cluster


@pytest.fixture(scope="session")
def shared_fleet(cluster: Cluster) -> Fleet:
    return start_fleet(cluster, replicas=WORKERS, steps=STEPS)


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    found = shared_fleet.get(f"wv/{FLEET}")
    conditions = found.get("status", {}).get("conditions", [])
    if found["spec"].get("suspend") or "Stalled" in {c["type"] for c in conditions}:
        usual = {"rollout": None, "suspend": None, "source": {"path": shared_fleet.source}}
        shared_fleet.publish(str(shared_fleet.next_step()), **usual)
    shared_fleet.wait_whole()
    return shared_fleet
