"""Single keys from a terminal, while a screen is shown."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # Windows: Ctrl-C ends the screen there
    termios = tty = None  # type: ignore[assignment]  # as everywhere that a module may be missing

_MOST_BYTES = 1000


class Keys:
    """Reads what was typed. `is_open`: whether standard input is a terminal that can be read by keys."""

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open

    def pressed(self, key: str, seconds: float) -> bool:
        """Wait, at most until the key is pressed. Returns: whether it was."""
        until = time.monotonic() + seconds
        while self._is_open and (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                typed = os.read(sys.stdin.fileno(), _MOST_BYTES)
                if key.encode() in typed:
                    return True
                self._is_open = bool(typed)
        if not self._is_open:
            time.sleep(seconds)
        return False


@contextmanager
def keys(*, wanted: bool) -> Iterator[Keys]:
    """The keys of standard input, without echo, until the end of the block. `wanted`: whether a screen is shown."""
    if termios is None or not wanted or not sys.stdin.isatty():
        yield Keys(is_open=False)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield Keys(is_open=True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
