"""One cluster, one operator, one fleet of two real workers for the whole run.

A test that breaks the fleet leaves it whole: `fleet` waits until it is ready before every test.
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
OTHERS = {
    "wider": {"seed": 1, "shape": {"hidden": 128}},
    "deeper": {"seed": 1, "shape": {"layers": 3}},
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    found = preflight.problems("node")
    if found and os.environ.get("CI"):
        pytest.fail(preflight.describe(found), pytrace=False)
    if found:
        pytest.skip(preflight.describe(found))
    with Cluster.start(nodes=2, mounts=stack.mounts()) as cluster:
        stack.load_images(cluster)
        stack.install(cluster)
        yield cluster


@pytest.fixture(scope="session")
def shared_fleet(cluster: Cluster) -> Fleet:
    return start_fleet(cluster, replicas=WORKERS, steps=STEPS, others=OTHERS)


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    shared_fleet.wait_whole()
    return shared_fleet
