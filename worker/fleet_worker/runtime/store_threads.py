"""Threads for work on file systems, which may take for ever to answer.

A thread that waits for a network file system cannot be ended. So each work has a thread of its own,
that the process does not wait for at its end, and whoever asked stops waiting when a limit is over
or when the work is not wanted any more. What a thread that was left behind still brings is freed in
that thread. Their number is limited for each store: one that does not answer is not asked again
and again, and another one can still be read.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

T = TypeVar("T")

SILENCE_SECONDS = 60.0
"""How long a store may bring nothing while a version is read from it."""
_MOST_LEFT = 4
_LEFT_FOR_SECONDS = 5.0
"""What was given up ends at its next piece, unless the store hangs."""
_RETRY_SECONDS = 30.0


class Pulse:
    """When work last got an answer from its store."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Note an answer; from any thread."""
        self._at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long ago the last one was."""
        return time.monotonic() - self._at


class StoreThreads:
    """All threads of a worker that wait for file systems."""

    def __init__(self) -> None:
        self._left: dict[str, list[float]] = {}

    async def run(
        self,
        work: Callable[[], T],
        *,
        store: str = "",
        within_seconds: float = SILENCE_SECONDS,
        pulse: Pulse | None = None,
        until: asyncio.Future[None] | None = None,
        late: Callable[[T], object] = lambda _: None,
    ) -> T:
        """Do some work in a thread.

        Args:
            work: What to do.
            store: The directory that it needs, of those that may hang together.
            within_seconds: How long it may take; with a pulse, how long that may be silent.
            pulse: Beats while the work gets on.
            until: The work is not wanted any more once this is done.
            late: Given what the work brings after it was given up.

        Errors:
            Refusal: `SourceUnreadable` if the store does not answer; `Superseded` after `until`.
        """
        self._check_answers(store)
        pulse = pulse or Pulse()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        left: list[float] = []

        def deliver(settle: Callable[[], None], bring: Callable[[], object]) -> None:
            if left:
                self._left[store].remove(left[0])
            if outcome.done():
                leave(bring)
            else:
                settle()

        _start(work, outcome, deliver, late)
        try:
            await _wait(outcome, until, pulse, within_seconds)
            if outcome.done():
                return outcome.result()
        finally:
            if outcome.cancel():
                left.append(time.monotonic())
                self._left.setdefault(store, []).append(left[0])
        if until is not None and until.done():
            raise Refusal(Reason.SUPERSEDED, "a newer version took over")
        raise _does_not_answer(store, f"has not answered for {within_seconds:g} s")

    def _check_answers(self, store: str) -> None:
        now = time.monotonic()
        stuck = [since for since in self._left.get(store, []) if now - since > _LEFT_FOR_SECONDS]
        if len(stuck) >= _MOST_LEFT:
            raise _does_not_answer(
                store, f"does not answer: {len(stuck)} earlier reads still wait for it"
            )


def leave(work: Callable[[], object]) -> None:
    """Do what nobody waits for, in a thread of its own: free memory, close files."""
    threading.Thread(target=work, name="rlfleet-free", daemon=True).start()


def _start(
    work: Callable[[], T],
    outcome: asyncio.Future[T],
    deliver: Callable[[Callable[[], None], Callable[[], object]], None],
    late: Callable[[T], object],
) -> None:
    """Do the work in a thread, and deliver in the event loop how it ended."""
    loop = outcome.get_loop()

    def in_thread() -> None:
        answer: tuple[Callable[[], None], Callable[[], object]]
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failure = error
            answer = (lambda: outcome.set_exception(failure), lambda: None)
        else:
            answer = (lambda: outcome.set_result(result), lambda: late(result))
        try:
            loop.call_soon_threadsafe(deliver, *answer)
        except RuntimeError:  # the loop is closed: the process is about to end
            answer[1]()

    threading.Thread(target=in_thread, name="rlfleet-store", daemon=True).start()


async def _wait(
    outcome: asyncio.Future[Any],
    until: asyncio.Future[None] | None,
    pulse: Pulse,
    within_seconds: float,
) -> None:
    wanted = {outcome} if until is None else {outcome, until}
    while (left := within_seconds - pulse.silent_seconds) > 0:
        done, _ = await asyncio.wait(wanted, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


def _does_not_answer(store: str, how: str) -> Refusal:
    return Refusal(
        Reason.SOURCE_UNREADABLE,
        f"the store {store} {how}; look at the mount on the worker's node".replace("  ", " "),
        retry_after_seconds=_RETRY_SECONDS,
    )
