"""A shared store that can hang.

Workers see the checkpoints through a FUSE server on their node (bindfs), as they see those of a
network file system through its client. While the server is stopped, every call that the kernel
cannot answer from memory hangs, as on an NFS mount whose server is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaos.fleet import Fleet
from devcluster import Cluster, distribution
from devcluster.errors import NotRunningError

_PROGRAM = "bindfs"
# The kernel caches no attributes: a measurement must not depend on the age of a cache.
_OPTIONS = "allow_other,ro,attr_timeout=0,entry_timeout=0,negative_timeout=0"


def mount_store(cluster: Cluster, folder: Path) -> Path:
    """Mount a view of a folder of this machine on every node. Returns: its path there."""
    view = folder.with_name(f"{folder.name}-view")
    view.mkdir()
    program = distribution.installed(_PROGRAM, f"usr/bin/{_PROGRAM}")
    for node in cluster.status()["nodes"]:
        cluster.exec([str(program), "-o", _OPTIONS, str(folder), str(view)], node=int(node))
    return view


@contextmanager
def store_hangs(fleet: Fleet) -> Iterator[None]:
    """Stop the store's servers on all nodes until the end of the block."""
    _signal_servers(fleet, "STOP")
    try:
        yield
    finally:
        _signal_servers(fleet, "CONT")


def _signal_servers(fleet: Fleet, name: str) -> None:
    for node in fleet.cluster.status()["nodes"]:
        with suppress(NotRunningError):  # a node that a failure has taken
            fleet.cluster.exec(["pkill", f"-{name}", "-x", _PROGRAM], node=int(node))
