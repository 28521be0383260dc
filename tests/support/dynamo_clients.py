"""Both of prime-rl's Dynamo backends: discovery at one address, then calls at each worker.

Their code is on branches only (prime-rl pull requests 2773 and 3296), so these are the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

Json = dict[str, Any]
NATIVE_ROUTES = frozenset(
    {
        "control/pause_generation",
        "control/resume_generation",
        "control/is_paused",
        "control/get_weight_version",
        "update/update_weight_version",
    }
)
CALL_SECONDS = 720.0
POLL_SECONDS = 0.1


class DynamoError(Exception):
    """A refusal: HTTP 200 with the status `error`, as Dynamo answers."""


@dataclass
class Dynamo:
    """A trainer that finds its workers.

    Fields:
        discovery_url: the fleet's address.
        token: sent to discovery and to workers; these clients have one.
        reach: the address of a worker, from where the client runs.
    """

    discovery_url: str
    token: str
    reach: Callable[[str], str]

    def workers(self, model: str, world_size: int, *, within_seconds: float = 120) -> list[Json]:
        """Ask until two answers agree and have all processes. Errors: TimeoutError, ValueError."""
        before: list[Json] | None = None
        limit = time.monotonic() + within_seconds
        url = self.discovery_url.rstrip("/").removesuffix("/v1") + "/v1/rl/workers"
        while time.monotonic() < limit:
            page = self._http("GET", url)
            if page.status_code < 500:
                found = _checked(page.raise_for_status().json(), model)
                if found == before and sum(row["world_size"] for row in found or ()) == world_size:
                    return found or []
                before = found
            time.sleep(1)
        raise TimeoutError("the workers do not come")

    def update_natively(self, rows: list[Json], path: str, version: str) -> None:
        """As `DynamoInferencePool` (3296). After a failure the engines stay paused."""
        paused = {"mode": "keep", "clear_cache": False}
        self._all(rows, "/engine/control/pause_generation", paused)
        if any(r != {"is_paused": True} for r in self._all(rows, "/engine/control/is_paused", {})):
            raise DynamoError("a worker is not paused")
        rpc = {"method": "reload_weights", "args": [], "timeout": CALL_SECONDS}
        for row in rows:
            url = self.reach(row["admin_base_url"]) + "/collective_rpc"
            found = self._post(url, rpc | {"kwargs": {"weights_path": path}})
            if found != {"results": [None]}:
                raise DynamoError(f"not what collective_rpc answers: {found}")
        self._all(rows, "/engine/update/update_weight_version", {"new_version": version})
        reads = self._all(rows, "/engine/control/get_weight_version", {})
        while any(read != {"weight_version": version} for read in reads):
            time.sleep(POLL_SECONDS)
            reads = self._all(rows, "/engine/control/get_weight_version", {})
        self._all(rows, "/engine/control/resume_generation", {})

    def update_flat(self, rows: list[Json], path: str, version: str) -> None:
        """As `DynamoAdminAPI` (2773), which resumes whatever happens."""
        self._all(rows, "/engine/pause_generation", {"mode": "keep", "clear_cache": False})
        try:
            body = {"model_path": path, "weight_version": version, "engine_rpc": "reload_weights"}
            self._all(rows, "/engine/update_weights_from_disk", body)
        finally:
            self._all(rows, "/engine/resume_generation", {})

    def _all(self, rows: list[Json], path: str, body: Json) -> list[Json]:
        return [self._post(self.reach(row["system_url"]) + path, body) for row in rows]

    def _post(self, url: str, body: Json) -> Json:
        found = self._http("POST", url, json=body).raise_for_status().json()
        if not isinstance(found, dict) or found.get("status") == "error":
            raise DynamoError(f"{url}: {found}")
        return found

    def _http(self, method: str, url: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(trust_env=False) as client:
            return client.request(method, url, headers=headers, timeout=CALL_SECONDS, **options)


def _checked(page: Json, model: str) -> list[Json] | None:
    """The rows in the order of ranks; None while a worker is not ready. Errors: ValueError."""
    if type(page["protocol_version"]) is not int or page["protocol_version"] != 1:
        raise ValueError("another protocol")
    rows = [row for row in page["workers"] if row.get("model") == model]
    if any(row.get("error") for row in rows):
        return None
    for row in rows:
        whole = all(type(row[key]) is int for key in ("instance_id", "world_size"))
        if not (whole and row["system_url"] and set(row["routes"]) >= NATIVE_ROUTES):
            raise ValueError(f"not a row: {row}")
    if len({row["system_url"] for row in rows}) != len(rows):
        raise ValueError("two workers with one address")
    return sorted(rows, key=lambda r: (r["namespace"], r["component"], r["instance_id"]))
