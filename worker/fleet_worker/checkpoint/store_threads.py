"""Threads for work on file systems, which may never answer.

A thread that waits for a network file system cannot be ended. So each piece of work has a daemon
thread of its own, and the caller stops waiting after a timeout or when the work is superseded. A
thread that is left behind frees its late result itself. The number of such threads is limited for each
store, so that a store that hangs gets no more of them, and other stores can still be read.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fleet_worker.checkpoint.files import is_uri
from fleet_worker.checkpoint.os_errors import unreadable
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

T = TypeVar("T")

SILENCE_SECONDS = 60.0
"""Timeout of a store that brings no bytes while a version is read from it."""
_MAX_LEFT = 4
_LEFT_FOR_SECONDS = 5.0
"""Work that is left behind ends at its next piece of bytes; after this time its store hangs."""
_RETRY_SECONDS = 30.0


class Pulse:
    """The time at which work last got an answer from its store."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Record an answer. Thread-safe."""
        self._at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last answer."""
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
        """Run a function in a thread and return its result.

        Args:
            work: The function.
            store: The directory that it reads. Directories that hang together have one name.
            within_seconds: The timeout of the work; with a pulse, of its silence.
            pulse: Beats while the work makes progress.
            until: The work is superseded once this is done.
            late: Called with the result of work that was left behind.

        Errors:
            Refusal: `SourceUnreadable` if the store does not answer, or if the work raises an
                `OSError`; `Superseded` after `until`.
        """
        self._check_answers(store)
        pulse = pulse or Pulse()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        left: list[float] = []

        def deliver(finish: Callable[[], None], free: Callable[[], object]) -> None:
            if left:
                self._left[store].remove(left[0])
            if outcome.done():
                leave(free)
            else:
                finish()

        _start(partial(_done, work, store), outcome, deliver, late)
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
        if len(stuck) >= _MAX_LEFT:
            raise _does_not_answer(
                store, f"does not answer: {len(stuck)} earlier reads are still waiting for it"
            )


def leave(work: Callable[[], object]) -> None:
    """Run a function in a thread without waiting for it: free memory, close files."""
    threading.Thread(target=work, name="rlfleet-free", daemon=True).start()


def _done(work: Callable[[], T], store: str) -> T:
    """Do the work. Any of its calls to the file system may fail: no such error leaves the thread."""
    try:
        return work()
    except OSError as error:
        raise unreadable(_named(store), error) from error


def _start(
    work: Callable[[], T],
    outcome: asyncio.Future[T],
    deliver: Callable[[Callable[[], None], Callable[[], object]], None],
    late: Callable[[T], object],
) -> None:
    """Do the work in a thread, and deliver its outcome in the event loop."""
    loop = outcome.get_loop()

    def in_thread() -> None:
        answer: tuple[Callable[[], None], Callable[[], object]]
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
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


def _does_not_answer(store: str, problem: str) -> Refusal:
    reached = "its address, and whether a NetworkPolicy permits it"
    remedy = reached if is_uri(store) else "the mount on the worker's node"
    return Refusal(
        Reason.SOURCE_UNREADABLE,
        f"{_named(store)} {problem}; check {remedy}",
        retry_after_seconds=_RETRY_SECONDS,
    )


def _named(store: str) -> str:
    return f"the store {store}".rstrip()
