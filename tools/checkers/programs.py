"""The programs, and one run of each. The first run builds a program, which takes minutes for promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from devcluster import programs
from devcluster.parts import Part
from envs import REPOSITORY, interpreter_of

_BUILD = Path(__file__).parent / "build"
ACTIONLINT = Part(
    name="actionlint",
    module=_BUILD / "actionlint",
    packages=("github.com/rhysd/actionlint/cmd/actionlint",),
)
PROMTOOL = Part(
    name="promtool",
    module=_BUILD / "promtool",
    packages=("github.com/prometheus/prometheus/cmd/promtool",),
    # Service discovery: the libraries of every cloud, and half of the build.
    tags=("remove_all_sd",),
)
PARTS = (ACTIONLINT, PROMTOOL)
"""All programs that are built with Go."""

Done = subprocess.CompletedProcess[str]


def actionlint(files: Iterable[Path]) -> Done:
    """Check the syntax, the expressions and the contexts of workflows.

    Errors:
        BuildError: actionlint cannot be built.
    """
    # Without the linters that it would use if the machine had them.
    return _run(_program(ACTIONLINT), "-shellcheck=", "-pyflakes=", *files)


def zizmor(files: Iterable[Path]) -> Done:
    """Check workflows for rights, pins and injections, without network."""
    program = interpreter_of("workflows").with_name("zizmor")
    return _run(program, "--offline", "--no-progress", "--quiet", *files)


def promtool(*arguments: str | Path) -> Done:
    """Run promtool.

    Errors:
        BuildError: promtool cannot be built.
    """
    return _run(_program(PROMTOOL), *arguments)


def _program(part: Part) -> Path:
    return programs.ensure_part(part).path(part.name)


def _run(program: Path, *arguments: str | Path) -> Done:
    command = [str(part) for part in (program, *arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
