"""The file systems of a node: a private copy of the machine's, with what a node writes replaced.

Runs as pid 1 of a mount namespace that `unshare` made private, so nothing here is seen outside.
"""

from __future__ import annotations

import os
from pathlib import Path

from devcluster import cgroups
from devcluster.linux import MS_BIND, MS_REC, MS_SHARED, mount
from devcluster.spec import INSIDE

# The kubelet sets these for the whole machine; it finds its values and writes nothing.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_CNI_CACHE = Path("/var/lib/cni")


def set_up(node_folder: Path, groups: tuple[cgroups.Hierarchy, ...]) -> None:
    """Replace /run, /sys, /var/log and a few files; afterwards share all mounts with containers.

    Args:
        node_folder: appears as `INSIDE`.
        groups: the hierarchies as seen on the machine, read before /sys is replaced.
    """
    opened = os.open(node_folder, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    INSIDE.mkdir()
    mount(f"/proc/self/fd/{opened}", INSIDE, flags=MS_BIND)
    os.close(opened)
    _replace_file(Path("/etc/resolv.conf"), INSIDE / "etc/resolv.conf")
    # Container logs, and links to them whose folder the kubelet does not let one choose.
    mount(str(INSIDE / "log"), "/var/log", flags=MS_BIND)
    _give_folder(_CNI_CACHE)
    _hide_kernel_settings()
    mount("sysfs", "/sys", "sysfs")
    _mount_groups(groups)
    # Mounts made by the kubelet for a volume must reach the containers, and theirs ours.
    mount("none", "/", flags=MS_REC | MS_SHARED)


def _replace_file(path: Path, content: Path) -> None:
    """Put `content` in the place of a file, which may be a link into /run, now empty."""
    real = Path(os.path.realpath(path))
    if not real.exists() and real.is_relative_to("/run"):
        real.parent.mkdir(parents=True, exist_ok=True)
        real.touch()
    if real.exists():
        mount(str(content), real, flags=MS_BIND)


def _give_folder(path: Path) -> None:
    """Put an empty writable folder at a path, which need not exist on the machine.

    The network plugins' library has its cache folder compiled in. Where the machine has no such
    folder, the parent becomes a temporary one in which every other entry appears as it was.
    """
    if not path.is_dir():
        _rebuild_folder(path.parent)
        path.mkdir()
    mount("tmpfs", path, "tmpfs", data="mode=755")


def _rebuild_folder(folder: Path) -> None:
    entries = [(entry.name, entry.is_symlink(), entry.is_dir()) for entry in os.scandir(folder)]
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", folder, "tmpfs", data="mode=755")
    for name, is_link, is_folder in entries:
        source, target = f"/proc/self/fd/{opened}/{name}", folder / name
        if is_link:
            target.symlink_to(os.readlink(name, dir_fd=opened))
            continue
        if is_folder:
            target.mkdir()
        else:
            target.touch()
        mount(source, target, flags=MS_BIND | MS_REC)
    os.close(opened)


def _hide_kernel_settings() -> None:
    folder = Path("/run/kernel-settings")
    for name, value in _KERNEL_SETTINGS.items():
        real = Path("/proc/sys", name)
        if real.exists():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(f"{value}\n")
            mount(str(copy), real, flags=MS_BIND)


def _mount_groups(groups: tuple[cgroups.Hierarchy, ...]) -> None:
    """Mount the control groups afresh: in a new cgroup namespace the node's group is the root."""
    top = Path("/sys/fs/cgroup")
    if any(group.controllers == "" for group in groups):
        mount("cgroup2", top, "cgroup2")
        return
    mount("tmpfs", top, "tmpfs", data="mode=755")
    for group in groups:
        folder = top / group.controllers.removeprefix("name=")
        folder.mkdir()
        data = group.controllers
        mount("cgroup", folder, "cgroup", data="none," + data if "=" in data else data)
        for name in data.split(","):
            if "," in data:
                (top / name).symlink_to(folder.name)
