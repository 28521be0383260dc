"""How the process ends: one code, in bounded time, whoever asks first."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

from fleet_worker.runtime.logs import fields

_LOG = logging.getLogger(__name__)
FAILED = 1


class Ending:
    """The end of this process.

    Fields:
        code: exit code, once the end has begun.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self._stop_server: Callable[[], None] = lambda: None

    def on_begin(self, stop_server: Callable[[], None]) -> None:
        """Name what lets vLLM's server end by itself."""
        self._stop_server = stop_server

    def begin(self, code: int, why: str, *, patience_seconds: float) -> None:
        """Let the server end; end the process by force when that takes too long.

        The first call decides. Safe from any task of the event loop.
        """
        if self.code is not None:
            return
        self.code = code
        level = logging.ERROR if code else logging.INFO
        _LOG.log(level, "ending: %s", why, extra=fields("ending", code=code))
        self._stop_server()
        timer = threading.Timer(patience_seconds, end_now, (code,))
        timer.daemon = True
        timer.start()


def end_now(code: int) -> None:
    """End this process and the engine's, without waiting for anything."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that read from a hanging file system would be waited for.
    os._exit(code)


ENDING = Ending()
"""Of this process; `serve` and the plugin share it."""
