"""From nothing to a ready cluster: the folder, the keeper, and the wait."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from devcluster import control, janitor, preflight, programs
from devcluster.api import Api
from devcluster.errors import DevclusterError, NotRunningError, StartError
from devcluster.paths import TOOLS, run_folder
from devcluster.profiles import Profile
from devcluster.spec import Spec, load_spec, node_name
from devcluster.waiting import wait_until

_POLL_SECONDS = 0.05
_LOG_BYTES = 3000
_GPU = "nvidia.com/gpu"

_keepers: dict[Path, subprocess.Popen[bytes]] = {}
"""The keepers that this process started and must reap."""


def random_id() -> str:
    """An unused id."""
    return f"c-{secrets.token_hex(4)}"


def start(
    cluster_id: str,
    *,
    profile: Profile,
    nodes: int,
    mounts: tuple[tuple[str, str], ...],
    detach: bool,
) -> Path:
    """Start a cluster's keeper and wait until the API server's credentials are there.

    Returns:
        The cluster's folder.

    Errors:
        See `Cluster.start`.
    """
    _check_arguments(profile, nodes, mounts)
    run = run_folder(cluster_id)
    preflight.require(profile)
    found = programs.ensure(profile)
    janitor.sweep()
    lock = janitor.new_folder(run)
    try:
        spec = Spec(
            id=cluster_id,
            run=run,
            profile=profile,
            nodes=nodes,
            mounts=mounts,
            programs=tuple(str(folder) for folder in found.folders),
            token=secrets.token_hex(3),
            starter=None if detach else os.getpid(),
        )
        spec.save()
        _start_keeper(run, lock)
    finally:
        os.close(lock)
    return run


def _check_arguments(profile: Profile, nodes: int, mounts: tuple[tuple[str, str], ...]) -> None:
    if nodes not in {1, 2} or (profile == "api" and nodes != 1):
        raise DevclusterError(f"{nodes} nodes with profile {profile}", remedy="1, or 2 with node")
    for source, destination in mounts:
        if not Path(source).is_absolute() or not Path(source).exists():
            raise DevclusterError(f"mount source {source} must be an absolute path that exists")
        if not Path(destination).is_absolute():
            raise DevclusterError(f"mount destination {destination} must be absolute")


def _start_keeper(run: Path, lock: int) -> None:
    with (run / "keeper.log").open("w+b") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "devcluster.keeper", str(run)],
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(TOOLS), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            # Ctrl-C on the terminal is for the starter, which then asks for an orderly end.
            start_new_session=True,
        )
        _keepers[run] = keeper
        try:
            while not _is_launched(run):
                _check_keeper(keeper, log, run.name)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            keeper.terminate()  # it cleans up; a detached one would stay forever
            reap(run)
            raise


def _check_keeper(keeper: subprocess.Popen[bytes], log: BinaryIO, name: str) -> None:
    if keeper.poll() is not None:
        log.seek(0)  # this descriptor still reads the log, though the folder is gone
        said = log.read()[-_LOG_BYTES:].decode(errors="replace")
        raise StartError(f"cluster {name} could not be set up:\n{said}")


def _is_launched(run: Path) -> bool:
    """Whether all nodes are set up and their components being started."""
    try:
        status = control.ask(run, {"op": "status"})
    except NotRunningError:
        return False
    nodes = status["nodes"].values()
    return bool(nodes) and all(node["components"] for node in nodes)


def reap(run: Path) -> None:
    """Wait for the end of a keeper, if this process is its parent."""
    keeper = _keepers.pop(run, None)
    if keeper is None:
        return
    try:
        keeper.wait(timeout=2 * janitor.PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        keeper.kill()  # the kernel ends its nodes, and the next sweep removes their files
        keeper.wait()


def wait_until_ready(run: Path, api: Api, *, timeout_seconds: float) -> None:
    """Wait for the API server, the default namespace's account, and every node.

    Errors:
        StartError: not ready in time; the message has the end of the logs.
    """
    spec = load_spec(run)

    def is_ready() -> bool:
        if not api.is_ready():
            return False
        # Without it pods are refused for the first moments of a namespace.
        if api.get("/api/v1/namespaces/default/serviceaccounts/default") is None:
            return False
        # Services route and names resolve once kube-proxy and CoreDNS are ready.
        running = control.ask(run, {"op": "status"})["nodes"].values()
        if not all(each["ready"] for node in running for each in node["components"]):
            return False
        if spec.profile == "api":
            return True
        nodes = (api.get("/api/v1/nodes") or {}).get("items", [])
        ready = [node for node in nodes if _condition(node, "Ready") == "True"]
        return len(ready) == spec.nodes

    try:
        wait_until(is_ready, timeout_seconds, f"cluster {run.name} to be ready")
    except TimeoutError as error:
        raise StartError(f"{error}\n{_ends_of_logs(run)}") from error


def wait_for_component(run: Path, name: str, node: int, timeout_seconds: float = 60.0) -> None:
    """Wait until a component that was started again is ready."""

    def is_ready() -> bool:
        components = control.ask(run, {"op": "status"})["nodes"][str(node)]["components"]
        return any(each["name"] == name and each["ready"] for each in components)

    try:
        wait_until(is_ready, timeout_seconds, f"{name} to be ready again")
    except TimeoutError as error:
        raise StartError(f"{error}\n{_ends_of_logs(run)}") from error


def set_gpus(api: Api, node: int, count: int) -> None:
    """Write a number of GPUs into a node's status, and wait until the kubelet made it allocatable.

    The kubelet leaves resources alone that it knows nothing about, and copies their capacity.
    """
    name = node_name(node)
    escaped = _GPU.replace("/", "~1")
    path = f"/status/capacity/{escaped}"
    api.patch(f"/api/v1/nodes/{name}/status", [{"op": "add", "path": path, "value": str(count)}])

    def is_allocatable() -> bool:
        status = (api.get(f"/api/v1/nodes/{name}") or {}).get("status", {})
        return bool(status.get("allocatable", {}).get(_GPU) == str(count))

    wait_until(is_allocatable, 30.0, f"{name} to offer {count} GPUs")


def _condition(item: dict[str, object], kind: str) -> str:
    status = item["status"]
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")


def _ends_of_logs(run: Path) -> str:
    """The last lines of every component that says something like an error."""
    texts = []
    for log in sorted(run.glob("node-*/logs/*.log")):
        lines = log.read_text(errors="replace").splitlines()[-8:]
        if lines:
            texts.append(f"--- {log.relative_to(run)}\n" + "\n".join(lines))
    return "\n".join(texts)
