"""The process that owns a cluster: starts its nodes, forwards into it, and cleans up after it.

    python -m devcluster.keeper RUN-FOLDER

It inherits the locked descriptor of the folder's lock, which therefore is free once it is dead.
It ends the cluster on request, on SIGTERM, or when its starter has ended in any way. If the keeper itself
is killed, the kernel kills its nodes. The next command then removes the unlocked folder and the empty
control groups (see `janitor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

from devcluster import control, credentials, janitor, network, nodes
from devcluster.components import API_SERVER
from devcluster.control import Message
from devcluster.errors import NotRunningError
from devcluster.forwarder import Forward, Forwarder, bound_socket
from devcluster.linux import adopt_orphans
from devcluster.spec import Spec, load_spec


class Keeper:
    """One cluster's owner."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._nodes: dict[int, nodes.Node] = {}
        self._forwarder: Forwarder | None = None
        self._api_port = 0
        self._api: Forward | None = None
        self._end = asyncio.Event()
        self._gone = asyncio.Event()

    async def run(self) -> None:
        """Start the cluster, keep it, and clean up."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._watch_starter(loop)
        server = await control.serve(self._spec.run, self._handle)
        starting = asyncio.create_task(self._start())
        ending = asyncio.create_task(self._end.wait())
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is None:
            await ending
        ending.cancel()
        starting.cancel()
        failure = None if starting.cancelled() or not starting.done() else starting.exception()
        if failure is not None:
            self._print_node_logs()  # the starter reads them; the folder is gone in a moment
        await self._clean_up()
        self._gone.set()
        server.close()
        if failure is not None:
            raise failure

    def _watch_starter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice the starter's death. Watches the process, not a thread of it as PDEATHSIG does."""
        if self._spec.starter is None:
            return
        try:
            starter = os.pidfd_open(self._spec.starter)
        except ProcessLookupError:
            self._end.set()
            return
        # Its number may belong to another process already.
        if os.getppid() != self._spec.starter:
            self._end.set()
        loop.add_reader(starter, self._end.set)

    async def _start(self) -> None:
        spec = self._spec
        bound = bound_socket()
        self._api_port = bound.getsockname()[1]
        credentials.create(spec, self._api_port)
        for number in range(1, spec.nodes + 1):
            nodes.write_files(spec, number)
            self._nodes[number] = nodes.Node(number, nodes.create_groups(spec, number))
        janitor.remember_groups(spec.run, [g for n in self._nodes.values() for g in n.groups])
        await asyncio.gather(*(n.launch(spec, self._api_port) for n in self._nodes.values()))
        first = self._nodes[1].pid
        namespace = os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._forwarder = Forwarder(namespace)
        self._api = await self._forwarder.add("127.0.0.1", self._api_port, bound)
        if first is not None and (second := self._nodes.get(2)) and second.pid is not None:
            network.link_nodes(first, second.pid)
        await asyncio.gather(*(node.go() for node in self._nodes.values()))

    async def _handle(self, request: Message) -> Message:
        match request["op"]:
            case "status":
                return await self._status()
            case "forward":
                assert self._forwarder is not None, "the cluster still starts"  # noqa: S101 - for the type checker
                forward = await self._forwarder.add(request["address"], request["port"])
                return {"port": forward.port}
            case "kill-node":
                self._node(request["node"]).kill()
                return {}
            case "kill" | "start" as operation:
                reply = await self._node(request["node"]).ask(request)
                if request["name"] == API_SERVER:
                    await self._follow_api_server(runs=operation == "start")
                return reply
            case "down":
                self._end.set()
                await self._gone.wait()
                return {}
            case other:
                raise LookupError(f"no operation {other}")

    def _node(self, number: int) -> nodes.Node:
        if number not in self._nodes:
            raise LookupError(f"there is no node {number}")
        return self._nodes[number]

    async def _follow_api_server(self, *, runs: bool) -> None:
        """Refuse connections while there is no server to connect to.

        By default a forward accepts and then resets, which clients take for a short network failure.
        kubectl would retry for 10 s before it reports that the server is down.
        """
        if self._api is not None and runs:
            await self._api.open()
        elif self._api is not None:
            self._api.close()

    async def _status(self) -> Message:
        described = {}
        for number, node in self._nodes.items():
            components: list[Message] = []
            if node.pid is not None and self._forwarder is not None:
                with contextlib.suppress(NotRunningError):  # it dies while we ask
                    components = (await node.ask({"op": "status"}))["components"]
            described[number] = {"pid": node.pid, "components": components}
        return {"api_port": self._api_port, "keeper": os.getpid(), "nodes": described}

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for node in self._nodes.values():
                if node.pid == pid:
                    node.ended()

    def _print_node_logs(self) -> None:
        for log in sorted(self._spec.run.glob("node-*/logs/node.log")):
            print(log.read_text(errors="replace"), file=sys.stderr)

    async def _clean_up(self) -> None:
        for node in self._nodes.values():
            node.kill()
        deadline = asyncio.get_running_loop().time() + janitor.PATIENCE_SECONDS
        gone = janitor.claim(self._spec.run)
        while gone is not None and not janitor.clean_once(gone):
            if asyncio.get_running_loop().time() > deadline:
                print("not everything could be removed", file=sys.stderr)
                return
            await asyncio.sleep(0.02)


def main(run: Path) -> None:
    """Keep the cluster of a folder; the caller's lock on the folder is held until the end."""
    os.umask(0o022)
    adopt_orphans()
    # Every forwarded connection takes two descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(Keeper(load_spec(run)).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
