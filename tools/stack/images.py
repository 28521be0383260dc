"""Development images: our wheel in a few hundred kB, the environments mounted from the machine.

Their entry points, users and paths are those of the Dockerfile; what pip installs there comes in
read-only from the environments of `tools/envs.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import envs
from devcluster import Cluster, ImageConfig

OPERATOR_IMAGE = "rlfleet/operator:dev"
WORKER_IMAGE = "rlfleet/worker:dev"
_APP = "/opt/rlfleet/app"


def mounts() -> list[tuple[Path, Path]]:
    """Folders that a cluster must give to its containers; makes the environments first."""
    pairs = [(Path("/usr"), Path("/usr"))]
    for name in ("operator", "worker"):
        python = envs.interpreter_of(name)
        pairs.append((python.parent.parent, _environment(name)))
        # The interpreter behind the environment must be at its own path.
        base = Path(_base_prefix(python))
        if not base.is_relative_to("/usr") and (base, base) not in pairs:
            pairs.append((base, base))
    return pairs


def load_images(cluster: Cluster) -> None:
    """Make both images of the working tree and load them on every node."""
    app = envs.app_folder()
    for image, name, module in (
        (OPERATOR_IMAGE, "operator", "fleet_operator"),
        (WORKER_IMAGE, "worker", "fleet_worker"),
    ):
        config = ImageConfig(
            entrypoint=("python3", "-m", module),
            environment={
                "PATH": f"{_environment(name)}/bin:/usr/bin:/bin",
                "PYTHONPATH": _APP,
                "PYTHONSAFEPATH": "1",
                "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "TZ": "UTC",
            },
        )
        cluster.load_image(image, {_APP: app}, config)


def _environment(name: str) -> Path:
    return Path(f"/opt/rlfleet/{name}")


def _base_prefix(python: Path) -> str:
    command = [str(python), "-c", "import sys; print(sys.base_prefix)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
