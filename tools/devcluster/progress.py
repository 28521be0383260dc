"""Shows the progress of long work: one line that moves on a terminal, else plain lines.

Goes to standard error, so that what a command prints for scripts stays clean.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

PLAIN_INTERVAL_SECONDS = 20.0


class Progress:
    """Reports steps. Without a terminal a running step says something every 20 s, not more."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty()
        self._started = time.monotonic()
        self._last_written = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._write(f"\r\033[K{text}\n" if self._moves else f"{text}\n")

    def begin(self, text: str) -> None:
        """Start a step and its clock."""
        self._started = self._last_written = time.monotonic()
        self._write(f"\r\033[K{text} …" if self._moves else f"{text} …\n")

    def update(self, text: str) -> None:
        """Tell how far the step is; cheap enough to be called for every line of output."""
        now = time.monotonic()
        line = f"{text} [{self.elapsed()}]"
        if self._moves:
            columns = shutil.get_terminal_size().columns
            self._write(f"\r\033[K{line[: columns - 1]}")
        elif now - self._last_written >= PLAIN_INTERVAL_SECONDS:
            self._last_written = now
            self._write(f"  {line}\n")

    def done(self, text: str) -> None:
        """End the step with a line that stays."""
        self.say(f"{text} [{self.elapsed()}]")

    def elapsed(self) -> str:
        """The step's time, as 7 s or 3 min 05 s."""
        seconds = int(time.monotonic() - self._started)
        return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
