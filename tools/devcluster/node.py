"""Pid 1 of a node's namespaces: sets them up, then supervises the node's components.

    python -m devcluster.node RUN-FOLDER NODE API-PORT DESCRIPTOR

The descriptor is a socket to the keeper. When the keeper is gone this process ends, and with it,
as the kernel does with a namespace that lost its pid 1, every process of the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from devcluster import cgroups, mounts, network
from devcluster.components import node_components
from devcluster.control import Message, answer
from devcluster.processes import without_proxies
from devcluster.programs import Programs
from devcluster.spec import INSIDE, load_spec, node_name
from devcluster.supervisor import Supervisor


def main(run: Path, node: int, api_port: int, descriptor: int) -> None:
    """Set up the node and answer the keeper until it hangs up."""
    spec = load_spec(run)
    # Read first: /sys and /proc change below.
    hierarchies = cgroups.own_hierarchies()
    socket.sethostname(node_name(node))
    mounts.set_up(spec.node_folder(node), hierarchies)
    network.set_up_inside(node, pods=spec.profile == "node", reserved_port=api_port)
    programs = Programs(tuple(Path(folder) for folder in spec.programs))
    environment = without_proxies(os.environ) | {
        "PATH": programs.search_path(),
        "HOME": str(INSIDE / "home"),
        "TMPDIR": str(INSIDE / "tmp"),
    }
    components = node_components(spec, node, api_port)
    supervisor = Supervisor(components, INSIDE / "logs", environment)
    asyncio.run(_serve(supervisor, descriptor))


async def _serve(supervisor: Supervisor, descriptor: int) -> None:
    running: list[asyncio.Task[None]] = []

    async def handle(request: Message) -> Message:
        match request["op"]:
            case "go":
                # Not before the keeper has joined the nodes and arranged the control groups.
                running.append(asyncio.create_task(supervisor.run()))
            case "kill":
                await supervisor.kill(request["name"])
            case "start":
                supervisor.start(request["name"])
        return {"components": supervisor.status()}

    keeper = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_unix_connection(sock=keeper)
    await answer(reader, writer, handle)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
