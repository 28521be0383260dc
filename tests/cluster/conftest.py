"""Clusters that tests share, and namespaces to be alone in.

Where no cluster can run, the tests are skipped with the preflight's reason. With CI=true that is a
failure, so that no run passes by leaving tests out.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator

import pytest
from pytest_asyncio.plugin import PytestAsyncioFunction
from tests.cluster.devcluster_app import APP_MOUNTS, load_app
from tests.cluster.support.fixtures import (  # noqa: F401 - fixtures of the operator
    operator_of_run,
    release,
    shared_operator,
    workspace,
)
from tests.cluster.support.rl_api import api, rl_api_chart  # noqa: F401 - fixtures of the RL API

from devcluster import Cluster, preflight
from devcluster.profiles import Profile
from devcluster.waiting import wait_until

_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the operator share an event loop, as they share an operator. In each file the tests
    that use the shared operator follow each other, so that it starts once. Files of few tests come first: each
    of those takes longer, and the last files should be short.
    """
    needs = {item: set(getattr(item, "fixturenames", ())) for item in items}
    for item in items:
        if "operator_of_run" in needs[item] and isinstance(item, PytestAsyncioFunction):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    tests = Counter(item.path for item in items)
    files = {path: n for n, path in enumerate(sorted(tests, key=tests.__getitem__))}
    items.sort(key=lambda item: (files[item.path], "shared_operator" in needs[item]))


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
