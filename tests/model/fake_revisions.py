"""The records of a fleet's templates as the API server keeps them, behind the real
`runtime.templates`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from fleet_operator.errors import Conflict, NotFound, Retryable, Terminal
from fleet_operator.ports import Json
from rlfleet_resources import names

if TYPE_CHECKING:
    from tests.model.simulator import Simulation


class FakeRevisions:
    """ControllerRevisions by path. Implements the part of `ports.Kube` that `Templates` uses.

    Fields:
        refused: creating a record fails, say by an admission policy; existing ones can be read.
        fenced: the caller is not the leader any more, and its process stops before every request.
        writes: so often one was attempted.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stored: dict[str, Json] = {}
        self.refused = False
        self.fenced = False
        self.writes = 0
        self.made = 0

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one record, or all of them."""
        self._be_reached()
        if params is not None:
            return {"items": list(self.stored.values())}
        if path not in self.stored:
            raise NotFound(path)
        return self.stored[path]

    async def create(self, path: str, body: Json) -> Json:
        """Take a record."""
        self.writes += 1
        self._be_reached()
        if self.refused:
            raise Terminal("403 forbidden")
        metadata = body["metadata"]
        path = f"{path}/{metadata['name']}"
        if path in self.stored:
            raise Conflict(path)
        self.made += 1
        self.stored[path] = body | {"metadata": metadata | {"uid": f"record-{self.made}"}}
        self.simulation.promises.availability.note_template(
            metadata["labels"][names.LABEL_REVISION]
        )
        return self.stored[path]

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete a record if it still is this one."""
        self.writes += 1
        self._be_reached()
        if path in self.stored and self.stored[path]["metadata"]["uid"] == uid:
            del self.stored[path]

    def _be_reached(self) -> None:
        if self.fenced or self.simulation.happens(self.simulation.faults.api_refuses):
            raise Retryable("503 service unavailable")


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits to its end."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")
