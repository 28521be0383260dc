"""The commands of the README and of the pages, run unchanged.

Four parts are adapted. The namespace `rl` or `NAMESPACE`, where a command names it, is the test's own.
The chart is that of the working tree.
A file `ca.crt` is the authority of the API server.
The API server, its authority and a token come in the variables that the README's curl uses.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.support import monitoring_crds
from tests.cluster.support.workspace import FLEET, Workspace
from tests.support.pages import ROOT, command_blocks, in_namespace, starting_with

from devcluster import Cluster

COLLECTOR = "docs/how-to/delete-old-versions.md"
NAMED = "policy"
"""The fleet of the pages."""
OBJECTS = sorted({*starting_with("kubectl "), *starting_with("curl --cacert ")})
RIGHTS = starting_with("kubectl auth can-i ")
OBJECTS = [
    (page, block)
    for page, block in OBJECTS
    if not page.startswith("docs/tutorial/") and (page, block) not in RIGHTS and page != COLLECTOR
]
RELEASES = [one for one in starting_with("helm ") if not one[0].startswith("docs/tutorial/")]
ELSEWHERE = {
    ("docs/tutorial/first-fleet.md", ""): "tests/e2e/test_tutorial.py",
    ("docs/how-to/connect-a-trainer.md", "curl "): "tests/e2e/test_page_requests.py",
    ("docs/how-to/dev-cluster.md", "# "): "tests/cluster/test_devcluster_page.py",
    ("README.md", "make demo"): "tests/e2e/test_demo.py",
    ("docs/how-to/use-the-rl-api.md", "curl "): "tests/unit/fleet_api/test_page.py",
    ("docs/how-to/scrape-metrics.md", "rlfleet "): "tests/unit/client/cli/test_metrics.py",
    ("docs/how-to/use-the-cli.md", "rlfleet "): "tests/unit/client/cli/test_verbs.py",
    ("docs/how-to/publish-deltas.md", "rlfleet "): "tests/unit/client/cli/test_delta.py",
    ("docs/how-to/use-the-cli.md", "$ rlfleet "): "tests/unit/client/cli/test_verbs.py",
    ("docs/how-to/use-the-cli.md", "source <(rlfleet "): "tests/contract/test_client.py",
}
"""Page and first words of blocks that another test runs."""
NOT_RUN = {
    ("docs/reference/rl-api.md", "API="): (
        "an address inside of the cluster; tests/unit/fleet_api/test_page.py sends the same request"
    ),
    (
        "docs/how-to/install.md",
        "docker ",
    ): "docker: the machines of the tests have no container engine",
    (
        COLLECTOR,
        "kubectl ",
    ): "Jobs need a kubelet; tests/cluster/test_collector.py runs the program",
    ("docs/tutorial/kind.md", ""): (
        "kind: the machines of the tests have no container engine; test_quickstarts.py validates"
    ),
    ("docs/tutorial/gpu.md", ""): (
        "a registry and GPUs; test_command_line.py validates the manifests that init writes"
    ),
    ("docs/how-to/publish-from-python.md", "pip "): (
        "pip fetches libraries; tests/contract/test_client.py builds and installs the same wheel"
    ),
    ("docs/how-to/publish-deltas.md", "pip "): (
        "the same wheel; the requirements of dev hold its extra"
    ),
    (
        "docs/how-to/use-the-cli.md",
        "pip ",
    ): "the same wheel; the requirements of dev hold its extra",
}
"""Page and first words of blocks that no test runs, and why."""


def test_each_block_of_commands_is_run_or_is_left_out_for_a_reason() -> None:
    here = {*OBJECTS, *RELEASES, *RIGHTS}
    listed = {**ELSEWHERE, **NOT_RUN}
    rest = [(page, block) for page, block in command_blocks() if (page, block) not in here]

    unlisted = [one for one in rest if not any(_is_listed(one, place) for place in listed)]
    assert unlisted == []
    assert [p for p in listed if not any(_is_listed(one, p) for one in rest)] == []
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())
    assert {page for page, _ in OBJECTS} == {
        "README.md",
        "docs/how-to/choose-a-strategy.md",
        "docs/how-to/connect-a-trainer.md",
        "docs/how-to/gitops.md",
        "docs/how-to/read-from-an-object-store.md",
        "docs/how-to/route-requests.md",
        "docs/how-to/trace-rollouts.md",
        "docs/how-to/update-and-drain.md",
        "docs/how-to/use-the-rl-api.md",
        "docs/reference/alerts.md",
        "docs/reference/troubleshooting.md",
    }


def _is_listed(one: tuple[str, str], place: tuple[str, str]) -> bool:
    return one[0] == place[0] and one[1].startswith(place[1])


@pytest.mark.parametrize(("page", "command"), OBJECTS)
@pytest.mark.usefixtures("shared_operator")
async def test_a_command_of_a_page_is_one_that_the_cluster_takes(
    workspace: Workspace, tmp_path: Path, page: str, command: str
) -> None:
    assert FLEET == NAMED
    await workspace.make_fleet(replicas=1, version="42")
    await workspace.applied("42", replicas=1)

    await _run(workspace.cluster, page, in_namespace(command, workspace.namespace), tmp_path)


@pytest.fixture
def empty_cluster(devcluster_api_possible: None) -> Iterator[Cluster]:
    """Without the release that the other tests share."""
    with Cluster.start(profile="api") as cluster:
        yield cluster


async def test_the_pages_install_and_uninstall_the_release(
    empty_cluster: Cluster, tmp_path: Path
) -> None:
    by_verb = {
        verb: [(page, block) for page, block in RELEASES if block.startswith(f"helm {verb} ")]
        for verb in ("install", "upgrade", "uninstall")
    }
    uninstall = by_verb["uninstall"][0]
    assert {" ".join(block.split()) for _, block in by_verb["uninstall"]} == {
        "helm uninstall rlfleet -n rlfleet-system"
    }
    assert len(by_verb["install"]) == 3
    assert ("docs/reference/rl-api.md", "helm upgrade rlfleet") in {
        (page, " ".join(block.split()[:3])) for page, block in by_verb["upgrade"]
    }
    assert sum(map(len, by_verb.values())) == len(RELEASES)
    monitoring_crds.install(empty_cluster)
    for page, block in by_verb["install"]:
        await _run(empty_cluster, page, block, tmp_path)
        listed = json.loads(empty_cluster.helm("list", "-A", "-o", "json").stdout)
        assert [(r["name"], r["namespace"]) for r in listed] == [("rlfleet", "rlfleet-system")]
        if (page, block) == by_verb["install"][-1]:
            for command in (*by_verb["upgrade"], *RIGHTS):  # one of them installs the RL API
                await _run(empty_cluster, *command, tmp_path)
        await _run(empty_cluster, *uninstall, tmp_path)
        assert json.loads(empty_cluster.helm("list", "-A", "-o", "json").stdout) == []


async def _run(cluster: Cluster, page: str, script: str, folder: Path) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    # No registry has the chart of the working tree.
    script = script.replace("oci://registry.example/rlfleet/charts/rlfleet", "charts/rlfleet")
    script = script.replace("--from-file=ca.crt", f"--from-file={authority}")
    authority.write_bytes(base64.b64decode(server["certificate-authority-data"]))
    own = {"API": server["server"], "CA": str(authority)}
    own["TOKEN"] = config["users"][0]["user"]["token"]
    done = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script.replace("curl ", "curl --fail ")),
        cwd=ROOT,
        env={**cluster.environment(), **own},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, f"{page}: {script}\n{output.decode()}"
