"""A later release of the operator: this tree with another version, another template of pods, and the
chart packed with another appVersion. Installed, its images come from the appVersion alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import envs
import stack
from devcluster import Cluster
from stack.operator import CHART

VERSION = "0.2.0"
START_LIMIT_SECONDS = 1800
"""The later release ends a starting worker after this time."""
WORKER_IMAGE = f"rlfleet/worker:{VERSION}"
_TODAYS_LIMIT = "START_LIMIT_SECONDS = 3600\n"


def prepare(cluster: Cluster, folder: Path) -> Path:
    """Load the images of the later release. Returns: its packed chart.

    `folder`: an empty one, for the files of the release.
    """
    app = _app(folder / "app")
    stack.load_image(cluster, f"rlfleet/operator:{VERSION}", "operator", "fleet_operator", app=app)
    stack.load_image(cluster, WORKER_IMAGE, "worker", "fleet_worker", app=app)
    versions = ("--version", VERSION, "--app-version", VERSION)
    cluster.helm("package", str(CHART), *versions, "--destination", str(folder))
    return folder / f"rlfleet-{VERSION}.tgz"


def upgrade(cluster: Cluster, chart: Path) -> str:
    """`helm upgrade` to a packed chart, with the images that its appVersion names."""
    return stack.install(cluster, "image.tag=", "worker.image=", chart=chart)


def _app(folder: Path) -> Path:
    shutil.copytree(envs.app_folder(), folder)
    container = folder / "fleet_operator" / "core" / "manifests" / "worker_container.py"
    (metadata,) = folder.glob("rlfleet_server-*.dist-info/METADATA")
    version = next(
        line for line in metadata.read_text().splitlines() if line.startswith("Version: ")
    )
    _replace(container, _TODAYS_LIMIT, f"START_LIMIT_SECONDS = {START_LIMIT_SECONDS}\n")
    _replace(metadata, version + "\n", f"Version: {VERSION}\n")
    return folder


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
    file.write_text(text.replace(old, new))
