"""Build targets of the Dockerfile with buildah."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import envs

BASE = "localhost/rlfleet/python-base:bookworm"
TARGETS = ("operator", "router", "worker-cpu")
"""The targets that are built by default. `worker` has 9.5 GB, and needs a GPU to run."""
PACKAGES = {
    "operator": "operator",
    "router": "router",
    "worker-cpu": "worker",
    "worker": "worker-cuda",
}
"""All images, each with the file of its pinned packages in `requirements/`."""
PLATFORMS = {"operator": "linux/amd64,linux/arm64"}
"""Of images with several. Their base must have them: that of debootstrap is for this machine alone."""
_PREFIX = "localhost/"
_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_UNUSED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "dev")
_CERTIFICATES = "/etc/ssl/certs"


class BuildError(Exception):
    """An image cannot be built; the message has the remedy."""


def name_of(target: str) -> str:
    """The name and tag of an image, as the chart's values have it."""
    return f"{_PREFIX}rlfleet/{target}:{_version()}"


def build(
    targets: Sequence[str] = TARGETS,
    *,
    mirror: str = "",
    base: str = "",
    context: Path = envs.REPOSITORY,
) -> None:
    """Build images. The base and unchanged layers are taken from buildah's storage.

    Args:
        targets: Stages of the Dockerfile.
        mirror: Address of a Debian mirror for the base; debootstrap's default if empty.
        base: An image with Python for all platforms of the targets; empty for one that debootstrap makes.
        context: The folder with the Dockerfile.

    Errors:
        BuildError: a target is unknown, or a program is missing or failed.
    """
    if unknown := sorted({*targets} - PACKAGES.keys()):
        raise BuildError(
            f"the image {unknown[0]!r} does not exist. Name some of {', '.join(PACKAGES)}."
        )
    for program in ("buildah", *(() if base else ("debootstrap",))):
        if shutil.which(program) is None:
            raise BuildError(f"{program} is missing. Install it (Debian: apt install {program}).")
    if os.geteuid() != 0:
        raise BuildError("buildah needs root to build them. Run this as root.")
    if not base and not _has_image(BASE):
        _build_base(mirror)
    for target in targets:
        if _is_list(name_of(target)):
            _buildah("manifest", "rm", name_of(target))  # a build adds to the list that there is
        # The certificates of this machine: its registries may be behind a proxy with its own.
        _buildah(
            "build", "--layers", "--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro",
            "--build-arg", f"PYTHON_IMAGE={base or BASE}", "--target", target,
            *_named(target, base), str(context),
        )  # fmt: skip


def push(target: str, registry: str) -> str:
    """Push an image to a registry that speaks HTTP, uncompressed, since it is on this machine.

    Returns: the image's name and tag in the registry.

    Errors: BuildError, if it was not built.
    """
    name = name_of(target).removeprefix(_PREFIX)
    destination = f"docker://{registry}/{name}"
    _buildah(
        "push",
        "--quiet",
        "--tls-verify=false",
        "--disable-compression",
        name_of(target),
        destination,
    )
    return name


def _named(target: str, base: str) -> tuple[str, ...]:
    if base and target in PLATFORMS:
        return "--platform", PLATFORMS[target], "--manifest", name_of(target)
    return "--tag", name_of(target)


def save(target: str, archive: Path, registry: str = "docker.io") -> None:
    """Write a built image into an OCI archive, all of its platforms, with the full name by which pods of the chart
    find it.

    Errors: BuildError, if it was not built.
    """
    name = name_of(target)
    named = f"{registry}/{name.removeprefix(_PREFIX)}"
    pushing = ("manifest", "push", "--all") if _is_list(name) else ("push",)
    _buildah(*pushing, "--quiet", name, f"oci-archive:{archive}:{named}")


def _build_base(mirror: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rlfleet-base-") as folder:
        root, layer = Path(folder, "root"), Path(folder, "base.tar")
        made = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root)]
        _run([*made, *([mirror] if mirror else [])])
        with tarfile.open(layer, "w") as archive:
            archive.add(root, arcname=".", filter=_wanted)
        container = _buildah("from", "scratch")
        try:
            _buildah("add", "--quiet", container, str(layer), "/")
            _buildah("config", "--cmd", "python3", container)
            _buildah("commit", "--quiet", container, BASE)
        finally:
            _buildah("rm", container)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unused = any(entry.name.startswith(f"./{folder}/") for folder in _UNUSED)
    return None if unused else entry


def _has_image(name: str) -> bool:
    return _succeeds("buildah", "inspect", "--type", "image", name)


def _is_list(name: str) -> bool:
    """Whether there is a list of images for several platforms with this name. `manifest inspect` asks a registry, too."""
    return _succeeds("buildah", "manifest", "exists", name)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _buildah(command: str, *arguments: str) -> str:
    # chroot: this works in containers and virtual machines without namespaces to spare.
    return _run(["buildah", command, *arguments], {"BUILDAH_ISOLATION": "chroot"})


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Run a command with its progress on standard error. Returns: its last line."""
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    ) as process:
        for line in process.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            last = line.strip() or last
    if process.returncode:
        raise BuildError(f"{' '.join(command)}: exit code {process.returncode}")
    return last


def _version() -> str:
    lines = (envs.REPOSITORY / "pyproject.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))
