"""Commands print no text that a terminal would obey."""

from __future__ import annotations

import pytest
from rich.text import Text

from rlfleet.cli import show


@pytest.mark.parametrize("where", [show.console, show.errors])
def test_what_a_terminal_would_obey_is_shown_by_its_escape(where, capsys):
    path = "/weights/\x1b[31m\u202e/step"
    console = where()
    console.print(f"[bold]path[/] {path}")
    console.print(show.table(["PATH"], [[path]]))
    console.print(Text(path))
    printed = "".join(capsys.readouterr())

    assert printed.count("/weights/\\x1b[31m\\u202e/step") == 3
    assert "\x1b" not in printed
    assert "\u202e" not in printed
