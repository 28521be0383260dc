"""Control groups: each node gets a group of its own below the caller's, removed after it.

Version 1 (each controller mounted alone) needs a group in every hierarchy. Version 2 has a single
tree. In it, a group that passes controllers to its children may contain no process, so a node's own
processes move into a child. The caller's own group usually contains its shell. Then the nearest ancestor
that can pass the controllers on is used.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_V1_NEEDED = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids"})
_OWN_PROCESSES = "node"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups, and the caller's place in it."""

    controllers: str
    """As in the mount's options, "cpu,cpuacct" or "name=systemd"; "" for version 2."""
    caller: Path
    """The folder of the caller's group."""
    top: Path
    """Where the tree is mounted."""


def read_hierarchies(mountinfo: str, own_groups: str) -> tuple[Hierarchy, ...]:
    """The trees that a cluster uses.

    Args:
        mountinfo: the content of /proc/self/mountinfo.
        own_groups: the content of /proc/self/cgroup.

    Returns:
        All of version 1 if its controllers are mounted, else the one of version 2, else nothing.
    """
    own = [line.split(":", 2)[1:] for line in own_groups.splitlines()]
    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, top = fields.split(" ")[3:5]
        for controllers, path in own:
            mounted = set(controllers.split(",")) <= set(options.split(","))
            if kind == ("cgroup" if controllers else "cgroup2") and (mounted or not controllers):
                # In a container the tree is mounted from a group below its root.
                inside = os.path.relpath(path, root)
                caller = Path(top) if inside.startswith("..") else Path(top, inside)
                found.setdefault(controllers, Hierarchy(controllers, caller, Path(top)))
    version_1 = tuple(hierarchy for name, hierarchy in found.items() if name)
    if {name for one in version_1 for name in one.controllers.split(",")} >= _V1_NEEDED:
        return version_1
    return (found[""],) if "" in found else ()


def own_hierarchies() -> tuple[Hierarchy, ...]:
    """The trees of the calling process."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    return read_hierarchies(mountinfo, Path("/proc/self/cgroup").read_text())


def create(name: str) -> tuple[Path, ...]:
    """Make a node's group in every hierarchy.

    Returns:
        The groups' folders, to be joined before the cgroup namespace is made.

    Errors:
        DevclusterError: this machine's groups cannot hand controllers on.
    """
    groups = []
    for hierarchy in own_hierarchies():
        parent = hierarchy.caller if hierarchy.controllers else _delegating_parent(hierarchy)
        group = parent / name
        group.mkdir(exist_ok=True)
        if "cpuset" in hierarchy.controllers:
            # A new group may use no processor and no memory node, and cannot be joined so.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (group / setting).write_text((parent / setting).read_text())
        groups.append(group)
    if not groups:
        raise DevclusterError("no control groups are mounted", remedy="mount cgroup2")
    return tuple(groups)


def join(groups: tuple[Path, ...]) -> None:
    """Move the calling process into the groups."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def hand_on(groups: tuple[Path, ...]) -> None:
    """Version 2: give the controllers to the children of a node's group; version 1 needs nothing.

    To be called once the node's first processes live in their own cgroup namespace.
    """
    for group in groups:
        if not _is_version_2(group):
            continue
        child = group / _OWN_PROCESSES
        child.mkdir(exist_ok=True)
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (child / "cgroup.procs").write_text(process)
        _enable(group)


def processes(groups: tuple[Path, ...]) -> set[int]:
    """Everything that lives in the groups or below."""
    found: set[int] = set()
    for group in groups:
        for folder, _, _ in os.walk(group):
            with contextlib.suppress(OSError):  # a group may vanish while it is read
                members = Path(folder, "cgroup.procs").read_text()
                found.update(int(process) for process in members.split())
    return found


def remove(groups: tuple[Path, ...]) -> bool:
    """Remove empty groups with all below them; whether all are gone."""
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):  # still in use: the caller tries again
                Path(folder).rmdir()
    return not any(group.exists() for group in groups)


def _is_version_2(group: Path) -> bool:
    return (group / "cgroup.controllers").exists() and (group / "cgroup.subtree_control").exists()


def _delegating_parent(hierarchy: Hierarchy) -> Path:
    """Version 2: the nearest group, from the caller's upwards, that can hand controllers on."""
    for group in (hierarchy.caller, *hierarchy.caller.parents):
        with contextlib.suppress(OSError):  # it holds processes, or lacks a controller itself
            _enable(group)
            return group
        if group == hierarchy.top:
            break
    raise DevclusterError(
        "no control group above this process can hand on " + ", ".join(V2_CONTROLLERS),
        remedy="start from a login session or a systemd service (Delegate=yes), "
        "or a container with the machine's cgroup namespace",
    )


def _enable(group: Path) -> None:
    """Hand the controllers on; OSError when the kernel refuses or the group has not got one."""
    wanted = " ".join(f"+{name}" for name in V2_CONTROLLERS)
    control = group / "cgroup.subtree_control"
    if not set(control.read_text().split()) >= set(V2_CONTROLLERS):
        control.write_text(wanted)
