"""Starts a node in namespaces of its own and holds on to it. Used by the keeper."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from devcluster import cgroups, images, settings
from devcluster.control import Line, Message
from devcluster.linux import die_with_parent
from devcluster.paths import TOOLS
from devcluster.processes import run
from devcluster.programs import Programs
from devcluster.spec import PAUSE_IMAGE, Spec

_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")


class Node:
    """A node's first process, as seen from the machine."""

    def __init__(self, number: int, groups: tuple[Path, ...]) -> None:
        self.number = number
        self.groups = groups
        self.pid: int | None = None
        """Of `unshare`, which lives in the node's namespaces except that of processes."""
        self._line: Line | None = None

    async def launch(self, spec: Spec, api_port: int) -> None:
        """Start the node; when this returns it has its mounts and network, but no components."""
        ours, theirs = socket.socketpair()
        log = (spec.node_folder(self.number) / "logs" / "node.log").open("ab")
        arguments = [str(spec.run), str(self.number), str(api_port), str(theirs.fileno())]
        process = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
            [
                *("unshare", *_NAMESPACES, "--mount-proc", "--propagation", "private"),
                *("--fork", "--kill-child", "--"),
                *(sys.executable, "-P", "-m", "devcluster.node", *arguments),
            ],
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(TOOLS), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            # The keeper has no other thread, so nothing else can hold a lock at the fork; and its
            # only thread ends with it, which is what the kernel watches.
            preexec_fn=self._before_exec,  # noqa: PLW1509 - see above
            start_new_session=True,
        )
        log.close()
        theirs.close()
        self.pid = process.pid
        process.returncode = 0  # the keeper reaps all its children in one place
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._line = Line(reader, writer)
        await self._line.ask({"op": "status"})

    def _before_exec(self) -> None:
        die_with_parent()
        # Before the cgroup namespace is made: the group joined here becomes its root.
        cgroups.join(self.groups)

    async def go(self) -> None:
        """Start the components."""
        cgroups.hand_on(self.groups)
        await self.ask({"op": "go"})

    async def ask(self, request: Message) -> Message:
        """Pass a request on to the node."""
        assert self._line is not None, "launch the node first"  # noqa: S101 - a defect of the caller
        return await self._line.ask(request)

    def kill(self) -> None:
        """SIGKILL everything in the node; does not wait."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> None:
        """To be called when the process was reaped."""
        self.pid = None
        if self._line is not None:
            self._line.close()


def create_groups(spec: Spec, number: int) -> tuple[Path, ...]:
    """Make the node's control groups."""
    return cgroups.create(spec.group_name(number))


def write_files(spec: Spec, number: int) -> None:
    """Make the node's folder with the configuration of all its components."""
    folder = spec.node_folder(number)
    for name in ("etc/cni", "home", "kubelet", "log", "logs", "opt", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    etc = folder / "etc"
    (etc / "resolv.conf").write_text(settings.RESOLV_CONF)
    if spec.profile == "api":
        return
    programs = Programs(tuple(Path(path) for path in spec.programs))
    (etc / "kubelet.json").write_text(settings.kubelet(spec))
    (etc / "kube-proxy.json").write_text(settings.kube_proxy(spec, number))
    plugins = programs.path("bridge").parent
    (etc / "containerd.toml").write_text(settings.containerd(plugins, programs.path("runc")))
    (etc / "cni/10-pods.conflist").write_text(settings.pod_network(number))
    default = run([programs.path("ctr"), "oci", "spec"]).stdout
    (etc / "base-spec.json").write_text(settings.base_spec(default, spec.mounts))
    (etc / "Corefile").write_text(settings.dns(spec))
    images.write_archive(
        etc / "pause.tar",
        PAUSE_IMAGE,
        {"pause": programs.path("pause")},
        images.ImageConfig(entrypoint=("/pause",), user="65535:65535"),
        base=False,
    )
