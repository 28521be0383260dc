"""`rlfleet completion`: the script that completes verbs and options in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import _completion_scripts, get_completion_script

_VARIABLE = "_RLFLEET_COMPLETE"
"""Typer reads what a shell asks for from this variable: that of a program named `rlfleet`."""
_completion_scripts["bash"] = r"""
%(complete_func)s() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" last="${COMP_WORDS[COMP_CWORD]#[:=]}" word
    local typed='([^[:space:]\]|\\.)*$'
    COMPREPLY=( $( env _TYPER_COMPLETE_ARGS="$line" _TYPER_COMPLETE_FISH_ACTION=get-args \
                   %(autocomplete_var)s=complete_fish "$1" 2> /dev/null | cut -f 1 ) )
    if [[ ${#COMPREPLY[@]} -gt 0 && "$last" != [\"\']* ]]; then
        [[ "$line" =~ $typed ]]
        word="${BASH_REMATCH[0]#--*=}"
        COMPREPLY=( $( printf '%%q\n' "${COMPREPLY[@]}" ) )
        COMPREPLY=( "${COMPREPLY[@]#"${word%%"$last"}"}" )
    fi
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Unlike Typer's own, for contexts like `arn:aws:…` and `my cluster`.

Bash begins a word behind each colon and `=`, and does not quote what it inserts. The traceback of a Ctrl-C
does not belong on the line.
"""


class Shell(StrEnum):
    """Shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script for a shell; `source <(rlfleet completion bash)` uses it."""
    print(get_completion_script(prog_name="rlfleet", complete_var=_VARIABLE, shell=shell))  # noqa: T201 - rich would wrap it
