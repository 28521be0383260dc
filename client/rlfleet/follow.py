"""Follows the changes of one WeightVersion, over lost connections, restarts and expired histories."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeVar

from rlfleet.errors import NotFound, Unavailable
from rlfleet.ports import Change, GoneError, Kind, Place
from rlfleet.resources import WeightVersion

WINDOW_SECONDS = 28.0
"""Longest time of one watch. A connection that died unnoticed hides changes for less than 30 seconds."""
PATIENCE_SECONDS = 60.0
"""How long a server may fail before the failure is reported, unless the caller sets a deadline."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a WeightVersion. `weights`: its new state; the last one if it was deleted."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    weights: WeightVersion


class Pauses:
    """The pauses between attempts, and the time at which a failure is reported."""

    def __init__(self, objects: Place, deadline: float | None) -> None:
        self._objects = objects
        self._deadline = deadline
        self.reset()

    def reset(self) -> None:
        """Begin again, after the server has answered."""
        self._failure: Unavailable | None = None
        self._give_up_at = self._deadline
        self._next_seconds = _FIRST_PAUSE_SECONDS

    async def after(self, error: Unavailable) -> None:
        """Wait before the next attempt. Errors: the failure itself, once the deadline is over."""
        self._failure = error
        now = self._objects.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + PATIENCE_SECONDS
        left = self._give_up_at - now
        if left <= 0:
            raise error
        await self._objects.sleep(min(error.retry_after_seconds or self._next_seconds, left))
        self._next_seconds = min(2 * self._next_seconds, _LONGEST_PAUSE_SECONDS)

    async def after_watch(self, begun: float) -> None:
        """Note the end of a watch that began at `begun`, and wait if it ended at once."""
        if self._objects.monotonic() - begun < _FIRST_PAUSE_SECONDS:
            await self.after(Unavailable("the API server ends each watch at once"))
        else:
            self.reset()

    def finish(self) -> None:
        """Report the last attempt, after which no other follows. Errors: its error, if it failed."""
        if self._failure is not None:
            raise self._failure


async def patiently(
    objects: Place, call: Callable[[], Awaitable[T]], deadline: float | None = None
) -> T:
    """Repeat a request until the server answers. Errors: Unavailable as in `follow`."""
    pauses = Pauses(objects, deadline)
    while True:
        try:
            return await call()
        except Unavailable as error:
            await pauses.after(error)


async def follow(
    objects: Place,
    name: str,
    *,
    seen: WeightVersion | None = None,
    deadline: float | None = None,
) -> AsyncGenerator[Event]:
    """Changes of a WeightVersion, each state once. Without a deadline it never ends by itself.

    Args:
        objects: The API that has the object.
        name: Name of the object.
        seen: The state to continue from; without one the present state comes first.
        deadline: When to end, on the clock of `objects`.

    Errors:
        NotFound: the object did not exist at the beginning.
        Unavailable: the server has not answered until the deadline, or for a minute.
    """
    if seen is None:
        seen, since = await patiently(objects, lambda: _read(objects, name), deadline)
        if seen is None:
            raise missing(name, objects.namespace)
        yield Event("ADDED", seen)
    else:
        since = seen.metadata.resource_version
    last: WeightVersion | None = seen
    pauses = Pauses(objects, deadline)
    while (left := _left(objects, deadline)) > 0:
        try:
            if not since:
                now, since = await _read(objects, name)
                for missed in _between(last, now):
                    yield missed
                last = now
            begun = objects.monotonic()
            async with aclosing(objects.watch(Kind.WEIGHTS, name, since, left)) as changes:
                async for change in changes:
                    since = change.resource_version
                    pauses.reset()
                    for event in _events(last, change):
                        last = None if event.type == "DELETED" else event.weights
                        yield event
            await pauses.after_watch(begun)
        except GoneError as error:
            since = ""
            await pauses.after(Unavailable(str(error)))
        except Unavailable as error:
            await pauses.after(error)
    pauses.finish()


def _left(objects: Place, deadline: float | None) -> float:
    """Seconds for the next watch."""
    left = WINDOW_SECONDS if deadline is None else deadline - objects.monotonic()
    return min(WINDOW_SECONDS, left)


async def _read(objects: Place, name: str) -> tuple[WeightVersion | None, str]:
    """The present state, and the resource version from which a watch continues."""
    found, since = await objects.list(Kind.WEIGHTS, name)
    return WeightVersion.model_validate(found) if found else None, since


def missing(name: str, namespace: str) -> NotFound:
    """The error for a WeightVersion that does not exist."""
    return NotFound(
        f"there is no WeightVersion {name!r} in namespace {namespace!r}; create it, or let "
        "publish(…, path=…, create_for='<fleet>') create it"
    )


def _between(before: WeightVersion | None, now: WeightVersion | None) -> list[Event]:
    """The events that lead from one state to the next."""
    if before is None:
        return [Event("ADDED", now)] if now else []
    if now is None:
        return [Event("DELETED", before)]
    if now.metadata.uid != before.metadata.uid:
        return [Event("DELETED", before), Event("ADDED", now)]
    changed = now.metadata.resource_version != before.metadata.resource_version
    return [Event("MODIFIED", now)] if changed else []


def _events(last: WeightVersion | None, change: Change) -> list[Event]:
    """The events of a change; of a recreated object those of both. A bookmark has no event."""
    match change.type:
        case "DELETED":
            return [Event(change.type, WeightVersion.model_validate(change.object))]
        case "ADDED" | "MODIFIED":
            now = WeightVersion.model_validate(change.object)
            if last is not None and now.metadata.uid != last.metadata.uid:
                return _between(last, now)
            return [Event(change.type, now)]
        case _:
            return []
