"""Says before anything is started what this machine lacks, and what to do about it.

The checks are ordered: one that fails hides those behind it that could only fail for the same
reason. Some checks run in a namespace (`probe`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster import cgroups, distribution, machine, programs
from devcluster.errors import CannotRunHereError, DevclusterError
from devcluster.parts import CHOICE, CONTAINERS, KUBE, go_version, kubernetes_choice
from devcluster.paths import TOOLS, cache_folder
from devcluster.profiles import Profile

_GIB = 1 << 30
_BUILD_DISK_GIB = 8
_RUN_DISK_GIB = 1
_MEMORY_GIB = 1
_HIDDEN = ("/dev", "/proc", "/run", "/sys", "/var/log")
_UNFIT = re.compile(r"[\s:,'\"\\]")
_OTHER_CLUSTER = (
    "use a cluster you have: set KUBECONFIG and run `make demo CLUSTER=existing` "
    "(docs/how-to/dev-cluster.md)"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is missing."""

    what: str
    remedy: str


def problems(profile: Profile) -> tuple[Problem, ...]:
    """The problems that prevent a cluster of this profile here; empty if it can run."""
    for check in (_system, _choice, _tools, _cache, _build, _memory, _groups, _kernel):
        found = tuple(check(profile))
        if found:
            return found
    return ()


def require(profile: Profile) -> None:
    """Do nothing if a cluster can run here.

    Errors:
        CannotRunHereError: it cannot; the message names each missing part and its remedy.
    """
    found = problems(profile)
    if found:
        raise CannotRunHereError(describe(found), remedy=_OTHER_CLUSTER)


def describe(found: tuple[Problem, ...]) -> str:
    """The problems as lines of text."""
    lines = [f"- {problem.what}\n    {problem.remedy}" for problem in found]
    return "a cluster cannot run on this machine:\n" + "\n".join(lines)


def _system(profile: Profile) -> Iterator[Problem]:
    del profile
    if sys.platform != "linux":
        yield Problem(f"this is {platform.system()}, not Linux", "run in a Linux virtual machine")
    elif platform.machine() not in {"x86_64", "aarch64"}:
        yield Problem(f"{platform.machine()} processors were never tried", "use x86-64 or arm64")
    elif os.geteuid() != 0:
        yield Problem("namespaces and mounts need root", "run as root, for example with sudo -E")


def _choice(profile: Profile) -> Iterator[Problem]:
    choice = kubernetes_choice()
    if choice not in {"", "oldest"}:
        yield Problem(
            f"{CHOICE}={choice} is not a Kubernetes version", f"unset {CHOICE}, or set it to oldest"
        )
    elif choice and profile == "node":
        yield Problem(
            f"{CHOICE}={choice} has a control plane, but no kubelet",
            f"take the profile api, or unset {CHOICE}",
        )


def _tools(profile: Profile) -> Iterator[Problem]:
    del profile
    packages = {
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "mount": "mount",
        "ip": "iproute2",
    }
    for program, package in packages.items():
        if machine.find_program(program) is None:
            yield Problem(f"the program {program} is missing", f"install the package {package}")


def _cache(profile: Profile) -> Iterator[Problem]:
    del profile
    folder = cache_folder()
    hidden = next((top for top in _HIDDEN if folder.is_relative_to(top)), None)
    if hidden is not None:
        yield Problem(
            f"the cache folder {folder} is below {hidden}, which every node has for itself",
            "set RLFLEET_CACHE to a folder elsewhere",
        )
    elif _UNFIT.search(str(folder)):
        yield Problem(
            f"the cache folder {folder} has characters in its name that PATH, mount options or "
            "compiler flags cannot carry",
            "set RLFLEET_CACHE to a folder with a plain name",
        )


def _build(profile: Profile) -> Iterator[Problem]:
    """The problems of the builds that are still missing."""
    todo = programs.missing(profile)
    needed = _BUILD_DISK_GIB if todo else _RUN_DISK_GIB
    free = shutil.disk_usage(_existing(cache_folder())).free / _GIB
    if free < needed:
        yield Problem(
            f"{cache_folder()} has {free:.1f} GiB free of the {needed} GiB that are needed",
            "make room, or set RLFLEET_CACHE to a larger disk",
        )
    if not todo:
        return
    version = max(go_version(part.module) for part in (KUBE, CONTAINERS))
    if not machine.go_is_fit(version):
        text = ".".join(map(str, version))
        yield Problem(
            f"Go {text} or newer is missing (to build {', '.join(todo)})",
            f"install it from go.dev/dl, or allow an older Go to fetch {text}: GOTOOLCHAIN=auto",
        )
    if "runc" in todo and machine.find_program("gcc") is None:
        yield Problem(
            "a C compiler is missing (to build runc)", "install gcc, or runc 1.2 or newer"
        )
    elif "runc" in todo and not (machine.has_seccomp_headers() or distribution.can_fetch()):
        yield Problem(
            "libseccomp's header and static library are missing (to build runc)",
            "install libseccomp's development package, or runc 1.2 or newer",
        )
    if "nftables" in todo and not distribution.can_fetch():
        yield Problem("the program nft is missing (for kube-proxy)", "install nftables")


def _memory(profile: Profile) -> Iterator[Problem]:
    available = machine.available_memory_bytes() / _GIB
    if profile == "node" and available < _MEMORY_GIB:
        yield Problem(
            f"{available:.1f} GiB of memory are available; a node takes 0.6 without any pod",
            "end other programs",
        )


def _groups(profile: Profile) -> Iterator[Problem]:
    del profile
    try:
        groups = cgroups.create(f"rlfleet-probe-{secrets.token_hex(4)}")
    except (DevclusterError, OSError) as error:
        remedy = getattr(error, "remedy", "") or "in a container, start it privileged"
        yield Problem(f"control groups cannot be made: {error.args[0]}", remedy)
    else:
        cgroups.remove(groups)


def _kernel(profile: Profile) -> Iterator[Problem]:
    """Try everything that needs the kernel's help, in namespaces that are gone afterwards."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".probe-") as scratch:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--mount-proc")
        done = subprocess.run(
            [
                *("unshare", *spaces, "--propagation", "private", "--fork", "--kill-child", "--"),
                *(sys.executable, "-P", "-m", "devcluster.probe", profile, scratch),
            ],
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(TOOLS)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        yield Problem(
            f"namespaces cannot be made: {said[-1]}",
            "in a container, start it privileged; on a machine, look at the kernel's settings",
        )
        return
    for what, remedy in json.loads(done.stdout):
        yield Problem(what, remedy)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return path if path.exists() else _existing(path.parent)
