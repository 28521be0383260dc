"""The commands of `dev-cluster.md`, run unchanged, with an id of the test's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.pages import ROOT, blocks

from devcluster import Cluster
from devcluster.errors import NotRunningError
from devcluster.paths import TOOLS
from devcluster.starting import random_id

# The second block is a long build; `make compatibility` runs it.
START_AND_END, _, FROM_OUTSIDE, IMAGES = blocks("docs/how-to/dev-cluster.md", "console")
HELLO = """
import http.server

class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the page\\n")

http.server.HTTPServer(("", 8080), Hello).serve_forever()
"""
APP = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "app", "labels": {"app": "app"}},
        "spec": {
            "containers": [
                {
                    "name": "app",
                    "image": "example/hello:dev",
                    "imagePullPolicy": "Never",
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                }
            ]
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "app"},
        "spec": {"selector": {"app": "app"}, "ports": [{"port": 80, "targetPort": 8080}]},
    },
]


def commands(block: str) -> str:
    """The commands behind the prompt, with the lines that continue them; the rest is output."""
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith("# "):
            lines.append(line.removeprefix("# "))
        elif lines and lines[-1].endswith("\\"):
            lines.append(line)
    return "\n".join(lines)


def run(block: str, cluster_id: str, *, folder: Path = ROOT) -> str:
    """Run the commands of a block. Returns: what they print."""
    script = re.sub(r"-m devcluster [\w-]+", rf"\g<0> --id {cluster_id}", commands(block))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def cluster_id(devcluster_node_possible: None) -> Iterator[str]:
    chosen = random_id()
    yield chosen
    with suppress(NotRunningError):
        Cluster.attach(chosen).down()


@pytest.mark.long
def test_the_cluster_of_the_page_starts_is_used_and_ends(cluster_id: str) -> None:
    printed = run(START_AND_END, cluster_id)

    assert f"cluster {cluster_id} is ready" in printed
    assert re.search(r"^node-1 +Ready", printed, re.MULTILINE)
    assert f"cluster {cluster_id} is gone" in printed


@pytest.mark.long
def test_an_image_is_made_and_its_service_is_reached_from_outside_and_inside(
    cluster_id: str, tmp_path: Path
) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "hello.py").write_text(HELLO)
    run(IMAGES, cluster_id, folder=tmp_path)
    cluster = Cluster.attach(cluster_id)
    objects = {"apiVersion": "v1", "kind": "List", "items": APP}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")

    address, page = run(FROM_OUTSIDE, cluster_id).splitlines()

    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert page == "hello from the page"
