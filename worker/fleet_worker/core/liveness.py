"""When a worker is to be given up: the engine is dead, or has not answered for too long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last sign of life of the engine, in seconds of the monotonic clock.

    Fields:
        answered: When the engine last answered a round trip.
        dead: The engine's process is gone.
        busy_since: When work began that the engine answers nothing during (a load), else None.
    """

    answered: float
    dead: bool = False
    busy_since: float | None = None

    def problem(self, now: float, *, threshold: float, busy_threshold: float) -> str | None:
        """Why the worker should be restarted, or None while it is well.

        Args:
            now: Monotonic seconds.
            threshold: Longest silence, in seconds.
            busy_threshold: Longest silence while a load runs.
        """
        if self.dead:
            return "the engine process is dead"
        if self.busy_since is not None:
            silent = now - max(self.busy_since, self.answered)
            limit = busy_threshold
        else:
            silent = now - self.answered
            limit = threshold
        if silent > limit:
            return f"the engine has not answered for {silent:.0f} s"
        return None
