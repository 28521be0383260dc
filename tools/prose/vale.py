"""Vale, the program that checks prose: its pinned sources, and one run of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from devcluster import programs
from devcluster.parts import Part

_HERE = Path(__file__).parent
REPOSITORY = _HERE.parents[1]
CONFIG = _HERE / "vale.ini"
RULES = _HERE / "styles" / "Rlfleet"
PART = Part(
    name="vale",
    module=_HERE / "build",
    packages=("github.com/vale-cli/vale/v3/cmd/vale",),
    cgo=True,
)
"""Built with cgo: Vale parses source code with tree-sitter, which is written in C."""


def run(
    *texts: str, folder: Path, output: str = "line", config: Path = CONFIG
) -> subprocess.CompletedProcess[str]:
    """One run over files and folders, named from `folder`; Vale is built first if it is missing.

    The exit code is 0 without a finding, 1 with one and 2 for a rule that Vale cannot read.
    `output` is `line` (a finding a line) or `JSON` (file → findings).

    Errors:
        BuildError: Vale cannot be built.
    """
    program = programs.ensure_part(PART).path("vale")
    return subprocess.run(
        [program, "--no-global", f"--config={config}", f"--output={output}", *texts],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
