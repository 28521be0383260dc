"""The end of the process: in bounded time, with the exit code of the first request to end.

While its engine starts, vLLM answers SIGTERM with a KeyboardInterrupt. Its own wait for the
engine swallows that (`zmq_socket_ctx` in `vllm.utils.network_utils`), and the process waits on,
forever if the engine never starts. Kubernetes would kill it without a log line after the grace
period. So the handler that `serve` sets stays until the engine is up.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from fleet_worker.logs import fields

_LOG = logging.getLogger(__name__)
FAILED = 1


class Ending:
    """The end of this process.

    Fields:
        code: the exit code; None until the end has begun.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self._stop_server: Callable[[], None] = lambda: None

    def on_begin(self, stop_server: Callable[[], None]) -> None:
        """Set the function that makes vLLM's server shut down."""
        self._stop_server = stop_server

    def begin(self, code: int, reason: str, *, patience_seconds: float) -> None:
        """Shut the server down; after `patience_seconds` the process ends by force.

        Only the first call has an effect. Safe from any task of the event loop.
        """
        if self.code is not None:
            return
        self.code = code
        level = logging.ERROR if code else logging.INFO
        _LOG.log(level, "the process ends: %s", reason, extra=fields("ending", code=code))
        self._stop_server()
        timer = threading.Timer(patience_seconds, end_now, (code,))
        timer.daemon = True
        timer.start()


def end_now(code: int) -> None:
    """Kill the engine's processes and end this one, without waiting."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: it waits for threads, which may be stuck on a file system.
    os._exit(code)


ENDING = Ending()
"""The end of this process, shared by `serve` and the plugin."""


Handler = Callable[[int, FrameType | None], Any]


class KeptSigterm:
    """A SIGTERM handler of ours. While it is kept, other code cannot replace it."""

    def __init__(self) -> None:
        self._set = signal.signal
        self._process = 0

    def keep(self, handler: Handler) -> None:
        """Set our handler and keep it. Only from the main thread."""
        self._process = os.getpid()
        self._set(signal.SIGTERM, handler)
        signal.signal = self._guarded  # type: ignore[assignment]  # it has the same parameters

    def release(self) -> None:
        """Let other code set handlers again; ours stays until then."""
        signal.signal = self._set
        # uvloop may have imported the guarded function, which must pass calls on from now on.
        self._process = 0

    def _guarded(self, number: int, handler: Any) -> Any:
        # A forked child is vLLM's engine, which needs its own handlers.
        if number == signal.SIGTERM and os.getpid() == self._process:
            return signal.getsignal(number)
        return self._set(number, handler)


SIGTERM = KeptSigterm()
"""The handler of this process: `serve` keeps it, the plugin releases it."""
