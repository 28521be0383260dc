"""The programs that make a release: Helm, and oras for artefacts in the layout of OCI."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devcluster import programs
from devcluster.parts import KUBE, Part

ORAS = Part(
    name="oras",
    module=Path(__file__).parent / "build" / "oras",
    packages=("oras.land/oras/cmd/oras",),
)


class ReleaseError(Exception):
    """A release cannot be made. The message has the remedy."""


def oras() -> Path:
    """The program oras, built at the first call."""
    return programs.ensure_part(ORAS).path("oras")


def helm() -> str:
    """This machine's Helm, or else that of the development cluster."""
    return shutil.which("helm") or str(programs.ensure_part(KUBE).path("helm"))


def run(command: Sequence[str | Path], *, cwd: Path) -> str:
    """Run a program. Returns: what it wrote to standard output.

    Errors: ReleaseError with the end of what it wrote.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise ReleaseError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{said}")
    return done.stdout
