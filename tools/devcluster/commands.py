"""The commands of the command line. Results go to standard output, the rest to error."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from argparse import Namespace
from pathlib import Path

from devcluster import janitor, programs
from devcluster import preflight as checks
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError, NotRunningError
from devcluster.images import ImageConfig
from devcluster.paths import run_folder


def preflight(options: Namespace) -> int:
    """Say whether a cluster can run here; the exit code is 1 if it cannot."""
    checks.require(options.profile)
    todo = programs.missing(options.profile)
    built = f"to be built first: {', '.join(todo)}" if todo else "all programs are built"
    print(f"a cluster of profile {options.profile} can run here; {built}")
    return 0


def build(options: Namespace) -> int:
    """Build what is missing."""
    checks.require(options.profile)
    programs.ensure(options.profile)
    print(f"all programs of profile {options.profile} are built")
    return 0


def up(options: Namespace) -> int:
    """Start a cluster and, unless it is detached, stay until a signal."""
    janitor.sweep()
    if options.detach and options.id in janitor.running_clusters():
        print(f"cluster {options.id} runs already")
        _explain(Cluster.attach(options.id))
        return 0
    started = time.monotonic()
    cluster = Cluster.start(
        cluster_id=options.id,
        profile=options.profile,
        nodes=options.nodes,
        mounts=options.mount,
        gpus=options.gpus,
        detach=options.detach,
    )
    ready = f"cluster {cluster.id} is ready after {time.monotonic() - started:.1f} s"
    if options.detach:
        print(ready)
        _explain(cluster)
    else:
        _stay(cluster, ready)
    return 0


def _explain(cluster: Cluster) -> None:
    chosen = "" if cluster.id == "dev" else f" --id {cluster.id}"
    print(f"  kubeconfig   {cluster.kubeconfig}")
    print(f'  this shell   eval "$(python3 -m devcluster kubeconfig --shell{chosen})"')
    print(f"  end          python3 -m devcluster down{chosen}", flush=True)


def _stay(cluster: Cluster, ready: str) -> None:
    """Say that the cluster is ready, and end it on Ctrl-C or SIGTERM.

    Errors:
        NotRunningError: the cluster ended by itself, or by another command.
    """
    ends = {signal.SIGINT, signal.SIGTERM}
    # Blocked first, signals such as Ctrl-C wait until this process takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    print(ready)
    _explain(cluster)
    print("Ctrl-C ends it", flush=True)
    while signal.sigtimedwait(ends, 1.0) is None:
        if not janitor.is_kept(cluster.folder):
            raise NotRunningError(f"cluster {cluster.id} is gone")
    cluster.down()


def down(options: Namespace) -> int:
    """End one cluster or all."""
    janitor.sweep()
    running = janitor.running_clusters()
    run_folder(options.id)  # refuses what can be no id
    chosen = running if options.all else [options.id]
    for name in chosen:
        if name not in running:
            print(f"cluster {name} does not run")
            continue
        Cluster.attach(name).down()
        print(f"cluster {name} is gone")
    return 0


def status(options: Namespace) -> int:
    """Show the clusters and the components of one."""
    running = janitor.running_clusters()
    if not janitor.is_kept(run_folder(options.id)):
        names = ", ".join(running) or "none"
        raise NotRunningError(f"cluster {options.id} does not run (running: {names})")
    cluster = Cluster.attach(options.id)
    found = cluster.status()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"cluster {options.id}, files in {cluster.folder}")
    for number, node in found["nodes"].items():
        print(f"node-{number}" + ("" if node["pid"] else " is gone"))
        for each in node["components"]:
            state = "ready" if each["ready"] else "starts" if each["wanted"] else "killed"
            again = f", started {each['starts']} times" if each["starts"] > 1 else ""
            print(f"  {each['name']:26} {state}{again}")
    others = ", ".join(name for name in running if name != options.id)
    if others:
        print(f"also running: {others}")
    return 0


def kubeconfig(options: Namespace) -> int:
    """Print the kubeconfig's path, or lines for a shell."""
    cluster = Cluster.attach(options.id)
    if options.shell:
        folder = cluster.kubectl_path.parent
        print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
        print(f'export PATH={shlex.quote(str(folder))}:"$PATH"')
    else:
        print(cluster.kubeconfig)
    return 0


def execute(options: Namespace) -> int:
    """Become the program, inside."""
    cluster = Cluster.attach(options.id)
    command = cluster.inside(options.argv, node=options.node)
    sys.stdout.flush()
    os.execvpe(command[0], command, cluster.environment())  # noqa: S606 - that is the command


def load_image(options: Namespace) -> int:
    """Make an image from files, or take an archive, and load it."""
    cluster = Cluster.attach(options.id)
    if options.archive is not None:
        cluster.load_archive(options.archive)
        print(f"{options.archive} is loaded")
        return 0
    if options.name is None:
        raise DevclusterError("nothing to load", remedy="give a NAME and files, or --archive FILE")
    config = ImageConfig(
        entrypoint=tuple(options.entrypoint), environment=dict(options.env), user=options.user
    )
    files = {destination: Path(source).absolute() for destination, source in options.file}
    cluster.load_image(options.name, files, config)
    print(f"{options.name} is loaded")
    return 0


def forward(options: Namespace) -> int:
    """Print the address on the machine."""
    port = Cluster.attach(options.id).forward(options.namespace, options.target, options.port)
    print(f"127.0.0.1:{port}")
    return 0
