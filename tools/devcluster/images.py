"""Container images without an engine: a docker-archive written as a tar file.

An image of ours holds next to nothing: a base (users, the links of a merged /usr, an empty /tmp)
and the files it is given. Interpreter and libraries come in from the machine, read-only, by the
cluster's `mounts`.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.errors import DevclusterError

# The user of the pods is not among them, as in most images: a program that asks for its name fails.
_USERS = "root:x:0:0:root:/root:/bin/sh\n"
_GROUPS = "root:x:0:\n"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image's settings for its process."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "1000:1000"
    working_folder: str = "/"


def write_archive(
    target: Path,
    name: str,
    files: Mapping[str, Path],
    config: ImageConfig,
    *,
    base: bool = True,
) -> None:
    """Write an image as a docker-archive; equal input gives equal bytes.

    Args:
        target: the file to write.
        name: as in a pod's manifest, "rlfleet/worker:dev".
        files: destination in the image → file or folder (with all below it) on this machine.
            All files belong to root and are readable for all users.
        config: how to run it.
        base: whether the image holds users, links and /tmp; not for a single static program.

    Errors:
        DevclusterError: a source is not there, or the name has no tag.
    """
    if ":" not in name.rpartition("/")[2]:
        raise DevclusterError(f"the image {name!r} has no tag", remedy=f"call it {name}:dev")
    layer = _layer(files, base=base)
    described = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Entrypoint": list(config.entrypoint) or None,
                "Cmd": list(config.command) or None,
                "Env": [f"{key}={value}" for key, value in config.environment.items()],
                "User": config.user,
                "WorkingDir": config.working_folder,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
            "history": [{"created_by": "devcluster"}],
        }
    ).encode()
    config_name = f"{_digest(described)}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        _add_bytes(archive, config_name, described)
        _add_bytes(archive, "layer.tar", layer)


def _layer(files: Mapping[str, Path], *, base: bool) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        if base:
            _add_base(layer)
        for destination, source in sorted(files.items()):
            if not source.exists():
                raise DevclusterError(
                    f"{source}, which an image needs as {destination}, does not exist"
                )
            _add_tree(layer, source, destination.strip("/"))
    return buffer.getvalue()


def _add_base(layer: tarfile.TarFile) -> None:
    for folder in ("etc", "home", "opt", "run", "usr", "var"):
        _add_folder(layer, folder)
    _add_folder(layer, "tmp", mode=0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        # A machine that keeps its programs in /bin has no /usr to link to; those are rare now.
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
        layer.addfile(link)
    _add_bytes(layer, "etc/passwd", _USERS.encode())
    _add_bytes(layer, "etc/group", _GROUPS.encode())
    # Without it glibc asks the DNS before /etc/hosts, which holds localhost and the pod's name.
    _add_bytes(layer, "etc/nsswitch.conf", b"hosts: files dns\n")


def _add_tree(layer: tarfile.TarFile, source: Path, destination: str) -> None:
    """Add a file, or a folder with all below it, in a stable order."""
    if source.is_symlink():
        link = tarfile.TarInfo(destination)
        link.type, link.linkname = tarfile.SYMTYPE, str(source.readlink())
        layer.addfile(link)
    elif source.is_dir():
        _add_folder(layer, destination)
        for child in sorted(source.iterdir()):
            if child.name != "__pycache__":
                _add_tree(layer, child, f"{destination}/{child.name}")
    else:
        executable = source.stat().st_mode & 0o111
        _add_bytes(layer, destination, source.read_bytes(), mode=0o755 if executable else 0o644)


def _add_folder(layer: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, mode
    layer.addfile(folder)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
