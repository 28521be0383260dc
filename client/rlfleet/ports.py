"""The ports of the client: a place that has the objects, and the changes to one of them.

There are two kinds of places, the Kubernetes API (`kube`) and the RL API (`rl_api`), each blocking and
for asyncio. The methods are always coroutines. Those of a blocking place never suspend, and
`run_blocking` runs code that is built on them. So the logic is written once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast

from rlfleet.errors import RlfleetError, Unavailable
from rlfleet.sources import Publication
from rlfleet_resources.names import FLEET_PLURAL, WEIGHTS_PLURAL

Json = dict[str, Any]
T = TypeVar("T")


class Kind(StrEnum):
    """Kinds of objects, by their plural."""

    WEIGHTS = WEIGHTS_PLURAL
    FLEETS = FLEET_PLURAL


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. `type`: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`."""

    type: str
    object: Json

    @property
    def resource_version(self) -> str:
        """The resource version from which a later watch continues."""
        return str(self.object["metadata"]["resourceVersion"])


class GoneError(Exception):
    """The server no longer has the changes since a resource version."""


class ExistsError(Exception):
    """An object of that name exists already."""


class ConflictError(Unavailable):
    """The object has changed since the resource version that the patch names."""


class Changes(Protocol):
    """Changes to one WeightVersion. Each returns the object as it was written.

    Args of every method:
        deadline: until when a request without an answer is repeated, on the clock of the place. None
            means for a minute.

    Errors of every method: NotFound, Forbidden, Unavailable, Refused.
    """

    async def publish(self, asked: Publication, deadline: float | None) -> Json:
        """Ask for a version."""
        ...

    async def rollback(
        self, version: str, path: str | None, deadline: float | None, *, digest: str | None = None
    ) -> Json:
        """Go back to an earlier version of the run."""
        ...

    async def undo(self, deadline: float | None) -> Json:
        """Go back to what was applied before the desired version."""
        ...

    async def retry(self, deadline: float | None) -> Json:
        """Try an abandoned version once more."""
        ...

    async def suspend(self, *, suspended: bool, deadline: float | None) -> Json:
        """Suspend rollouts, or continue them."""
        ...


class Place(Protocol):
    """A place to read fleets and WeightVersions from, and its clock.

    Errors of every method: NotFound, Forbidden, Unavailable.
    """

    @property
    def namespace(self) -> str:
        """The namespace of the objects."""
        ...

    async def get(self, kind: Kind, name: str) -> Json:
        """An object."""
        ...

    async def list(self, kind: Kind, name: str) -> tuple[Json | None, str]:
        """The object of that name, None without one, and the version from which a watch continues."""
        ...

    async def all(self, kind: Kind) -> Sequence[Json]:
        """Every object of a kind."""
        ...

    def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        """Changes of the object after a resource version, for about `seconds` at most.

        Errors: GoneError.
        """
        ...

    def changes(self, name: str) -> Changes:
        """Changes to the WeightVersion of that name."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that only grows."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def in_background(self, work: Callable[[], T]) -> T:
        """Do work that blocks: in a thread, where other tasks run meanwhile. Errors: those of the work."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class _Closed:
    """In the place of an API that is closed."""

    async def close(self) -> None:
        """Do nothing, since it is closed."""

    def __getattr__(self, name: str) -> Any:
        raise RlfleetError("this client is closed; make a new one")


def closed() -> Place:
    """A place whose every use is an error."""
    return cast("Place", _Closed())


class Objects(Place, Protocol):
    """A place that can also write objects. Errors: also Refused."""

    async def patch(self, kind: Kind, name: str, body: Json) -> Json:
        """Merge a patch into an object (RFC 7396). Returns: the whole object."""
        ...

    async def create(self, kind: Kind, body: Json) -> Json:
        """Create an object. Errors: ExistsError."""
        ...


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a blocking place, in the caller's thread and without an event loop.

    Errors: RuntimeError if it suspends, which such a place never does.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a blocking place has suspended")
