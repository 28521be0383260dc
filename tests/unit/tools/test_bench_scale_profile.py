"""A published flame graph shows nothing of the machine that drew it."""

from __future__ import annotations

from bench_scale.profile import titled


def test_the_title_replaces_the_command_line() -> None:
    drawn = '<svg><text id="title" x="50%">/home/x/py-spy --pid 7</text><text>frame</text></svg>'

    assert titled(drawn, "1 < 2") == (
        '<svg><text id="title" x="50%">1 &lt; 2</text><text>frame</text></svg>'
    )
