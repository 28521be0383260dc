"""The programs to build, their sources, and the key of each build.

The versions are in go.mod files, one for Kubernetes, one for the oldest Kubernetes of the chart, and one
for the container runtime. The projects are tested with different versions of shared libraries, and one
go.mod would force one version on all. go.sum verifies every module.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from devcluster.paths import SOURCES, programs_folder

_KUBERNETES = SOURCES / "kubernetes"
_OLDEST = SOURCES / "kubernetes-oldest"
_RUNTIME = SOURCES / "runtime"

CHOICE = "RLFLEET_KUBERNETES"
"""Environment variable: `oldest` runs the control plane of the oldest Kubernetes of the chart."""


@dataclass(frozen=True, slots=True)
class Part:
    """A group of programs that is built, kept and found together."""

    name: str
    module: Path
    """The folder with go.mod."""
    packages: tuple[str, ...]
    """Main packages, as `go build` takes them; each becomes one program."""
    link: tuple[str, ...] = ("-s", "-w")
    tags: tuple[str, ...] = ()
    cgo: bool = False
    names: tuple[str, ...] = ()
    """Further names (symbolic links) of the part's single multi-call program."""

    def key(self) -> str:
        """Sixteen hex digits that change with anything the programs are built from.

        The Go version is left out. go.mod has the lowest one, and no update of Go should cause a build
        of several minutes.
        """
        digest = hashlib.sha256()
        recipe = (self.packages, self.link, self.tags, self.cgo, self.names, platform.machine())
        digest.update(repr(recipe).encode())
        for source in sorted(self.module.rglob("*")):
            if source.suffix in {".go", ".mod", ".sum"}:
                digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return digest.hexdigest()[:16]

    def folder(self) -> Path:
        """Where the finished programs are; exists only when they are complete."""
        return programs_folder() / f"{self.name}-{self.key()}"


def required_version(module: Path, path: str) -> str:
    """The version, as v1.2.3, at which a go.mod asks for a module."""
    found = re.search(
        rf"^\s*{re.escape(path)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise LookupError(f"{path} is not in {module}/go.mod")
    return found[1]


def go_version(module: Path) -> tuple[int, ...]:
    """The least Go version that a go.mod asks for, as (1, 26, 0)."""
    found = re.search(r"^go (\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"no go line in {module}/go.mod")
    return tuple(int(number) for number in found[1].split("."))


def kubernetes_version() -> str:
    """As v1.36.3."""
    return required_version(_KUBERNETES, "k8s.io/kubernetes")


def oldest_kubernetes_version() -> str:
    """As v1.30.14."""
    return required_version(_OLDEST, "k8s.io/kubernetes")


def kubernetes_choice() -> str:
    """The value of `CHOICE`; empty for the pinned Kubernetes."""
    return os.environ.get(CHOICE, "")


def helm_version() -> str:
    """As v4.2.4."""
    return required_version(_KUBERNETES, "helm.sh/helm/v4")


def _version_flags(version: str) -> tuple[str, ...]:
    """Linker flags for the version that the programs of Kubernetes report.

    Without them kubectl and helm call themselves v0.0.0 and refuse to compare versions.
    """
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"-X {p}.{name}={value}" for p in packages for name, value in values.items())


KUBE = Part(
    name="kube",
    module=_KUBERNETES,
    packages=("./kube",),
    link=(
        *("-s", "-w", *_version_flags(kubernetes_version())),
        f"-X helm.sh/helm/v4/internal/version.version={helm_version()}",
    ),
    names=(
        "etcd",
        "helm",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubectl",
        "kubelet",
    ),
)
OLDEST = Part(
    name="kube-oldest",
    module=_OLDEST,
    packages=("./kube",),
    link=("-s", "-w", *_version_flags(oldest_kubernetes_version())),
    names=("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
)
DNS = Part(name="dns", module=_KUBERNETES, packages=("./coredns",))
CERTS = Part(name="certs", module=_RUNTIME, packages=("./certs",))
CONTAINERS = Part(
    name="containers",
    module=_RUNTIME,
    packages=(
        "./pause",
        "github.com/containerd/containerd/v2/cmd/containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/ctr",
        "github.com/containernetworking/plugins/plugins/ipam/host-local",
        "github.com/containernetworking/plugins/plugins/main/bridge",
    ),
    # Snapshotters that need headers or kernel parts of their own; only overlayfs is used.
    tags=("no_btrfs", "no_zfs", "no_devmapper", "no_blockfile", "no_aufs", "no_erofs"),
)
RUNC = Part(
    name="runc",
    module=_RUNTIME,
    packages=("github.com/opencontainers/runc",),
    link=(
        *("-s", "-w", "-linkmode external", "-extldflags -static"),
        f"-X main.version={required_version(_RUNTIME, 'github.com/opencontainers/runc')[1:]}",
    ),
    # Every sandbox carries a seccomp profile, so a runc without it starts no pod at all.
    tags=("seccomp", "netgo", "osusergo"),
    cgo=True,
)

API_PARTS = (KUBE, CERTS)
NODE_PARTS = (*API_PARTS, DNS, CONTAINERS)
