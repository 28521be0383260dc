"""Clusters that tests share, and namespaces to be alone in.

Where no cluster can run the tests are skipped with the preflight's reason; with CI=true that is a
failure, so that no run passes by leaving out what it should have shown.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from tests.cluster.devcluster_app import APP_MOUNTS, load_app
from tests.cluster.support.fixtures import release, stage  # noqa: F401 - fixtures of the operator

from devcluster import Cluster, preflight
from devcluster.profiles import Profile
from devcluster.waiting import wait_until

_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}


def _require(profile: Profile) -> None:
    found = preflight.problems(profile)
    if found and _CI:
        pytest.fail(preflight.describe(found), pytrace=False)
    if found:
        pytest.skip(preflight.describe(found))  # namespaces and mounts need root and a kernel


@pytest.fixture(scope="session")
def devcluster_api_possible() -> None:
    """Skips, or fails in CI, where no control plane can run."""
    _require("api")


@pytest.fixture(scope="session")
def devcluster_node_possible() -> None:
    """Skips, or fails in CI, where no node can run."""
    _require("node")


@pytest.fixture(scope="session")
def devcluster_api(devcluster_api_possible: None) -> Iterator[Cluster]:
    """A control plane for the whole run: objects, but no pods."""
    with Cluster.start(profile="api") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def devcluster_node(devcluster_node_possible: None) -> Iterator[Cluster]:
    """A whole cluster for the whole run, with the machine's /usr and Python in every container."""
    with Cluster.start(mounts=APP_MOUNTS) as cluster:
        load_app(cluster)
        yield cluster


@pytest.fixture
def devcluster_namespace(devcluster_node: Cluster) -> Iterator[str]:
    """A namespace of the shared node, ready for pods, deleted after the test."""
    name = f"test-{secrets.token_hex(4)}"
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    devcluster_node.kubectl("create", "namespace", name)
    wait_until(lambda: devcluster_node.api.get(account), 20.0, f"the account of {name}")
    yield name
    devcluster_node.kubectl("delete", "namespace", name, "--wait=false")
