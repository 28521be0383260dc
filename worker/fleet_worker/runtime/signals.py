"""Keeping SIGTERM while vLLM starts.

While its engine starts, vLLM 0.32 answers SIGTERM with a KeyboardInterrupt, which its own wait for the
engine swallows (`zmq_socket_ctx` in `vllm.utils.network_utils`): the process then waits for an engine that
is up, and on for ever if it never comes. Kubernetes would kill it after the grace period; nobody would
know why. So the handler that `serve` has set stays until the engine is up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class KeptSigterm:
    """Ours while it is kept: others' attempts to set a handler for SIGTERM have no effect."""

    def __init__(self) -> None:
        self._set = signal.signal
        self._process = 0

    def keep(self, handler: Handler) -> None:
        """Set our handler and let nobody replace it. Only from the main thread."""
        self._process = os.getpid()
        self._set(signal.SIGTERM, handler)
        signal.signal = self._guarded  # type: ignore[assignment] # it passes on whatever it is given

    def release(self) -> None:
        """Let others set handlers again; ours stays until they do."""
        signal.signal = self._set
        # uvloop was imported meanwhile and has kept what it found under that name.
        self._process = 0

    def _guarded(self, number: int, handler: Any) -> Any:
        # A forked child is vLLM's engine, which has to stop its own way.
        if number == signal.SIGTERM and os.getpid() == self._process:
            return signal.getsignal(number)
        return self._set(number, handler)


SIGTERM = KeptSigterm()
"""Of this process; `serve` keeps it, the plugin releases it."""
