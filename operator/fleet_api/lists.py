"""Lists of the API server, page by page: a tenant decides how many objects there are, and others need the event loop.

Source: Kubernetes API concepts, "Retrieving large results sets in chunks" and "Receiving resources as Tables".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fleet_api.loop_time import turn
from fleet_api.ports import Cluster
from fleet_operator.places import Places
from rlfleet.ports import Json

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""Media type of the API server's tables."""
ROWS_OF_A_PAGE = 500
"""They take 3 ms to parse."""


async def table_pages(
    cluster: Cluster,
    places: Places,
    namespace: str,
    path: str,
    params: Mapping[str, str] | None = None,
) -> AsyncGenerator[Json]:
    """Yield the pages of the API server's table of a list, without the objects. Errors: those of `Cluster`."""
    asked = {**(params or {}), "includeObject": "None", "limit": str(ROWS_OF_A_PAGE)}
    while True:
        async with places.of(namespace):
            page = await cluster.call("GET", path, asked, accept=TABLE)
        yield page
        following = page.get("metadata", {}).get("continue")
        if not following:
            return
        asked["continue"] = following
        await turn()
