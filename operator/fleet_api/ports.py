"""Protocol of the API server as the RL API uses it. `rlfleet.kube.AsyncKube` implements it."""

from __future__ import annotations

from typing import Protocol

from rlfleet.ports import Json, Objects


class Cluster(Protocol):
    """The API server, with the RL API's own account.

    Errors of every call: those of `rlfleet.errors`.
    """

    def of(self, namespace: str) -> Objects:
        """The WeightVersions and fleets of a namespace."""
        ...

    async def call(
        self, method: str, path: str, params: dict[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Send any request. `path` begins at the root, as `/api/v1/namespaces/rl/pods`."""
        ...
