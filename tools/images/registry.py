"""A registry on a node of the development cluster, from which its kubelet pulls."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from devcluster import Cluster
from devcluster.spec import node_address
from images.build import BuildError, push

_PROGRAM = "docker-registry"
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


def registry_program() -> str:
    """The path of the registry's program.

    Errors: BuildError, if it is missing.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise BuildError(f"{_PROGRAM} is missing. Install it (Debian: apt install {_PROGRAM}).")
    return program


@contextlib.contextmanager
def registry(cluster: Cluster) -> Iterator[Registry]:
    """Run a registry on node 1, which ends with the block.

    Errors: BuildError, if the program is missing or does not start.
    """
    program = registry_program()
    folder = cluster.folder / "registry"
    folder.mkdir()
    configuration = folder / "config.json"  # YAML has JSON in it
    configuration.write_text(json.dumps(_configuration(folder / "data")))
    log = folder / "log"
    command = cluster.inside([program, "serve", str(configuration)], node=1)
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=cluster.environment())
        try:
            yield Registry(_answering(cluster, process, log))
        finally:
            process.terminate()
            process.wait()


def _configuration(data: Path) -> dict[str, object]:
    # On all addresses: the forward from this machine ends at the node's own address.
    return {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(data)}},
        "http": {"addr": f"0.0.0.0:{_PORT}"},
    }


def _answering(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> int:
    port = cluster.forward_address(node_address(1), _PORT)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/"):
            return port
        time.sleep(0.1)
    raise BuildError(f"{_PROGRAM} does not answer on port {_PORT}:\n{log.read_text()[-2000:]}")
