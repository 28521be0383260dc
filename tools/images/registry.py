"""A registry, and one on a node of the development cluster, from which its kubelet pulls."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from devcluster import Cluster, programs
from devcluster.parts import Part
from devcluster.spec import node_address
from images.build import BuildError, push

_REGISTRY = Part(
    name="registry",
    module=Path(__file__).parent / "build-registry",
    packages=("github.com/distribution/distribution/v3/cmd/registry",),
)
_PORT = 5000
_START_SECONDS = 20.0
# containerd speaks HTTP without TLS with registries on this address only.
_ADDRESS = f"127.0.0.1:{_PORT}"


class Registry:
    """A running registry: `push` fills it, and names tell the kubelet to pull from it."""

    def __init__(self, port: int) -> None:
        """`port`: where this machine reaches it, on 127.0.0.1."""
        self._port = port

    def push(self, target: str) -> str:
        """Push a built target. Returns: the name by which pods of the node pull it, with its tag.

        Errors: BuildError, if the image was not built.
        """
        name = push(target, f"127.0.0.1:{self._port}")
        return f"{_ADDRESS}/{name}"


def command(folder: Path, address: str) -> list[str]:
    """A command that serves a registry with its files in a folder. The program is built at the first call.

    `address`: host and port.
    """
    configuration = folder / "config.json"  # YAML has JSON in it
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    configuration.write_text(json.dumps(settings))
    program = programs.ensure_part(_REGISTRY).path("registry")
    return [str(program), "serve", str(configuration)]


@contextlib.contextmanager
def registry(cluster: Cluster) -> Iterator[Registry]:
    """Run a registry on node 1, which ends with the block.

    Errors: BuildError, if the program does not start.
    """
    folder = cluster.folder / "registry"
    folder.mkdir()
    log = folder / "log"
    # On all addresses: the forward from this machine ends at the node's own address.
    inside = cluster.inside(command(folder, f"0.0.0.0:{_PORT}"), node=1)
    with log.open("w") as output:
        process = subprocess.Popen(inside, stdout=output, stderr=output, env=cluster.environment())
        try:
            yield Registry(_answering(cluster, process, log))
        finally:
            process.terminate()
            process.wait()


def _answering(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> int:
    port = cluster.forward_address(node_address(1), _PORT)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/"):
            return port
        time.sleep(0.1)
    raise BuildError(f"the registry does not answer on port {_PORT}:\n{log.read_text()[-2000:]}")
