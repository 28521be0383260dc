"""The tutorial's commands, run unchanged."""

from __future__ import annotations

import re
import subprocess

import pytest
from tests.support.pages import DOCS, blocks

import envs
import stack
from devcluster import Cluster

pytestmark = pytest.mark.long
PAGE = "docs/tutorial/first-fleet.md"
OWN_CLUSTER = ("make cluster", "export KUBECONFIG=")
"""Lines for the reader's own cluster. The run has one: see tests/cluster/test_devcluster_lifetime.py."""
RUN_SECONDS = 500
NAMESPACE = "tutorial"
"""Instead of the page's `rl`: the other tests' fleet is there, and the page ends with its deletion."""


def test_every_command_of_the_tutorial_does_what_the_page_says(cluster: Cluster) -> None:
    folder = cluster.folder / "tutorial"
    folder.mkdir(mode=0o755)
    volume = folder / "volume.yaml"
    weights = str(folder / "weights")

    def adapted(text: str) -> str:
        text = text.replace("/tmp/weights", weights)  # noqa: S108 - the page's folder
        return re.sub(r"\brl\b", NAMESPACE, text).replace("docs/tutorial/volume.yaml", str(volume))

    volume.write_text(adapted((DOCS / "tutorial/volume.yaml").read_text()))
    lines = "\n".join(blocks(PAGE, "sh")).splitlines()
    script = adapted("\n".join(line for line in lines if not line.startswith(OWN_CLUSTER)))
    try:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", f"trap 'kill $(jobs -p)' EXIT\n{script}"],
            cwd=envs.REPOSITORY,
            env=cluster.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
    finally:
        stack.install(cluster)

    assert done.returncode == 0, done.stderr[-4000:]
    assert '"version":"1"' in done.stdout.replace(" ", "")
    assert "model.safetensors" in done.stdout, "why version 3 is refused"
