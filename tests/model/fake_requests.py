"""The clients of one fake worker: they send one request after the other, each for some seconds of tokens.

Keeps the fate of each request, so that a test can check why one ended early.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REQUEST_SECONDS = 3.0
_INSTANT_SECONDS = 1e-6
"""Less than this is what sums of floats leave over."""


@dataclass
class FakeRequests:
    """Fields:

    left_seconds: what the running (or held) request still needs; None between requests.
    finished: how many got all of their tokens.
    ended: why others got only a part of them: `kind of end`, each once.
    """

    left_seconds: float | None = None
    finished: int = 0
    ended: list[str] = field(default_factory=list)

    def generate(self, seconds: float) -> None:
        """The request generates tokens for this time."""
        while seconds > 0:
            if self.left_seconds is None:
                self.left_seconds = REQUEST_SECONDS
            step = min(seconds, self.left_seconds)
            seconds -= step
            self.left_seconds -= step
            if self.left_seconds <= 0:
                self.left_seconds = None
                self.finished += 1

    def finish(self, seconds: float) -> None:
        """The running request continues for this time; no other one follows it."""
        if self.left_seconds is None:
            return
        self.left_seconds -= seconds
        if self.left_seconds <= _INSTANT_SECONDS:
            self.left_seconds = None
            self.finished += 1

    def end(self, why: str) -> None:
        """The running request ends with the tokens that it has."""
        if self.left_seconds is not None:
            self.left_seconds = None
            self.ended.append(why)
