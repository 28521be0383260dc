"""`rlfleet completion`: the script that completes verbs and options in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

_VARIABLE = "_RLFLEET_COMPLETE"
"""Typer reads what a shell asks for from this variable: that of a program named `rlfleet`."""


class Shell(StrEnum):
    """Shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script for a shell; `source <(rlfleet completion bash)` uses it."""
    print(get_completion_script(prog_name="rlfleet", complete_var=_VARIABLE, shell=shell))  # noqa: T201 - rich would wrap it
