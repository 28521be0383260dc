"""A fake API server in memory, for the parts of the runtime that speak to `ports.Kube`.

It has only what those parts rely on: resourceVersions and their preconditions, uids, managed fields,
pages, watches with history and bookmarks, and 410 for compacted history. It checks statuses by the
CRDs. Each client has faults of its own. `tests/cluster` checks the same behaviour on a real API server.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from tests.support.crd_checks import PLURALS, checker
from tests.support.fake_objects import merge_patched

from fleet_operator.errors import Conflict, FleetError, NotFound, Silent, Terminal, Unknown
from fleet_operator.ports import WATCH_SILENCE_SECONDS, Json, KubeHooks
from rlfleet_resources.names import FIELD_MANAGER


@dataclass
class FakeCluster:
    """Objects by path, and what happened to them."""

    objects: dict[str, Json] = field(default_factory=dict)
    history: list[tuple[int, str, Json]] = field(default_factory=list)
    """resourceVersion, type and object of every event."""
    served: dict[str, Json] = field(default_factory=dict)
    """Status schemas by plural, of CRDs of another release."""
    version: int = 100
    compacted: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def client(self) -> FakeKube:
        """One more client, with faults of its own."""
        return FakeKube(self)

    def put(self, path: str, body: Json) -> Json:
        """Store an object of any writer."""
        self.version += 1
        before = self.objects.get(path)
        stored = copy.deepcopy(body)
        metadata = stored.setdefault("metadata", {})
        metadata.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{path}")
        metadata["resourceVersion"] = str(self.version)
        for key, text in stored.pop("stringData", {}).items():
            stored.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
        self.objects[path] = stored
        self._note("MODIFIED" if before else "ADDED", stored)
        return copy.deepcopy(stored)

    def drop(self, path: str) -> None:
        """Remove an object."""
        self.version += 1
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._note("DELETED", gone)

    def compact(self) -> None:
        """Forget the history: older resourceVersions are answered with 410."""
        self.compacted = self.version
        self.history.clear()

    def below(self, collection: str) -> list[Json]:
        """The objects of a collection, by name."""
        found = (o for p, o in sorted(self.objects.items()) if _belongs(p, o, collection))
        return [copy.deepcopy(o) for o in found]

    def _note(self, kind: str, body: Json) -> None:
        self.history.append((self.version, kind, copy.deepcopy(body)))
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class FakeKube:
    """One client. Implements `ports.HookedKube`.

    Fields:
        hooks: as of the real client, without times.
        unguarded: paths of writes without a hook. A real process writes its Lease with a client of its own.
        delay_seconds: how long a request is on its way before it takes effect.
        error: raised instead of doing anything.
        refuses: says, by verb and path, which error is raised instead of doing anything.
        webhook: changes what a write would store, by its path.
        answers_lost: requests take effect and then fail as unknown.
        hangs: requests never take effect and never end.
        page_size: pages are no larger than this, whatever the limit of the request.
        events_per_watch: a watch breaks after this many events.
        watch_delay_seconds: every event comes so late.
        mutes: says of a watch whether it delivers nothing from now on.
    """

    cluster: FakeCluster
    hooks: KubeHooks = field(default_factory=KubeHooks)
    unguarded: tuple[str, ...] = ()
    delay_seconds: float = 0
    error: FleetError | None = None
    refuses: Callable[[str, str], FleetError | None] = field(default=lambda _verb, _path: None)
    webhook: Callable[[str, Json], Json] = field(default=lambda _path, body: body)
    answers_lost: bool = False
    hangs: bool = False
    page_size: int = 500
    events_per_watch: int | None = None
    watch_delay_seconds: float = 0
    watch_error: FleetError | None = None
    bookmark_first: bool = False
    mutes: Callable[[str], bool] = field(default=lambda _path: False)
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""
        await self._begin("GET", path)
        if "/pods/" in path:
            raise Terminal(f"403 pods is forbidden: cannot get {path}")  # as under the chart's role
        if path in self.cluster.objects:
            return copy.deepcopy(self.cluster.objects[path])
        if params is None or "limit" not in params:
            raise NotFound(path)
        return self._page(path, params)

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it is there already."""
        await self._begin("POST", path)
        name = body["metadata"].get("name") or f"generated-{next(self.cluster.names)}"
        if f"{path}/{name}" in self.cluster.objects:
            raise Conflict(name)
        return self._end(self.cluster.put(f"{path}/{name}", body))

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""
        await self._begin("PUT", path)
        known = self.cluster.objects.get(path)
        if known is None:
            raise NotFound(path)
        if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict(path)
        return self._end(self.cluster.put(path, body))

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply, as one owner of everything."""
        await self._begin("APPLY", path)
        return self._end(self._write(path, body))

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch of maps."""
        await self._begin("MERGE", path)
        if path not in self.cluster.objects:
            raise NotFound(path)
        known = self.cluster.objects[path]
        if body["metadata"].get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
            raise Conflict(path)
        return self._end(self.cluster.put(path, self.webhook(path, merge_patched(known, body))))

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it still is the one with this uid; silent if it is gone."""
        await self._begin("DELETE", path)
        known = self.cluster.objects.get(path)
        if known is not None and known["metadata"]["uid"] == uid:
            self.cluster.drop(path)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream events from a resourceVersion on, until the test ends or breaks the stream."""
        await self._begin("WATCH", path)
        since = int(params["resourceVersion"])
        if self.bookmark_first:
            bookmark = {"resourceVersion": str(self.cluster.version)}
            yield {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": bookmark}}
        sent = 0
        while True:
            if since < self.cluster.compacted:
                raise Conflict("too old resource version")
            looked_at = self.cluster.version
            for version, kind, body in list(self.cluster.history):
                if version <= since or not _belongs("", body, path):
                    continue
                if self.events_per_watch is not None and sent >= self.events_per_watch:
                    if self.watch_error is not None:
                        raise self.watch_error
                    return
                await asyncio.sleep(self.watch_delay_seconds)
                if self.mutes(path):
                    await asyncio.sleep(WATCH_SILENCE_SECONDS)
                    raise Silent(path)
                since, sent = version, sent + 1
                yield {"type": kind, "object": copy.deepcopy(body)}
            if self.cluster.version == looked_at:  # else something came while these were sent
                await self.cluster.changed.wait()

    def _page(self, path: str, params: Mapping[str, str]) -> Json:
        items = self.cluster.below(path)
        if chosen := params.get("fieldSelector"):
            name = chosen.removeprefix("metadata.name=")
            items = [item for item in items if item["metadata"]["name"] == name]
        first, listed_at = 0, self.cluster.version
        if token := params.get("continue"):
            first, listed_at = map(int, token.split("@"))
            if listed_at < self.cluster.compacted:
                raise Conflict("the continue token is too old")
        after = first + min(int(params["limit"]), self.page_size)
        metadata: Json = {"resourceVersion": str(listed_at)}
        if after < len(items):
            metadata["continue"] = f"{after}@{listed_at}"
        return {"metadata": metadata, "items": items[first:after]}

    def _write(self, path: str, body: Json) -> Json:
        known = self.cluster.objects.get(path)
        uid = body["metadata"].get("uid")
        if path.endswith("/status"):
            owner = self.cluster.objects.get(path.removesuffix("/status"))
            if owner is None:
                raise NotFound(path)
            if owner["metadata"]["uid"] != uid:
                raise Conflict(path)
            _check_status(path, body["status"], self.cluster.served)
            known_version = body["metadata"].get("resourceVersion")
            if known_version not in {None, owner["metadata"]["resourceVersion"]}:
                raise Conflict(path)
            stored = self.cluster.put(path, body)
            owner["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            owner["status"] = copy.deepcopy(stored["status"])
            return stored
        if uid is not None and known is None:
            raise Conflict(path)
        if uid is not None and known is not None and known["metadata"]["uid"] != uid:
            raise Terminal(f"422 {path}: metadata.uid: field is immutable")
        at = known["metadata"]["resourceVersion"] if known is not None else None
        if at is not None and body["metadata"].get("resourceVersion", at) != at:
            raise Conflict(path)
        if not path.endswith("/status"):
            body = body | {"metadata": body["metadata"] | {"managedFields": [_managed(body)]}}
        return self.cluster.put(path, self.webhook(path, body))

    async def _begin(self, verb: str, path: str) -> None:
        if verb not in {"GET", "WATCH"} and path not in self.unguarded:
            self.hooks.before_write(path)
        self.requests.append((verb, path))
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if (error := self.error or self.refuses(verb, path)) is not None:
            raise error

    def _end(self, answer: Json) -> Json:
        if self.answers_lost:
            raise Unknown("the answer was lost")
        return answer


def _check_status(path: str, status: Json, served: Mapping[str, Json]) -> None:
    """Errors: Terminal if the CRD does not permit the status."""
    plural = path.split("/")[-3]
    if plural in PLURALS:
        other = served.get(plural)
        checks = Draft202012Validator(other) if other else checker(plural, "status")
        for error in checks.iter_errors(status):
            raise Terminal(f"422 {path}: {error.json_path}: {error.message}")


def _managed(body: Json) -> Json:
    """The fields that one server-side apply owns. Lists count as one field, unlike the real ones."""
    unowned = {"name", "namespace", "uid", "resourceVersion"}
    metadata = {k: v for k, v in body["metadata"].items() if k not in unowned}
    fields = _fields({k: v for k, v in body.items() if k not in {"apiVersion", "kind"}})
    fields |= _fields({"metadata": metadata})
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsType": "FieldsV1"}
    return entry | {"fieldsV1": fields}


def _fields(value: Any) -> Json:
    return {f"f:{k}": _fields(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _belongs(path: str, body: Json, collection: str) -> bool:
    namespace = body["metadata"].get("namespace")
    plural = collection.rsplit("/", 1)[1]
    if path:
        within = "/namespaces/" not in collection or path.startswith(f"{collection}/")
        return within and f"/{plural}/" in path and not path.endswith("/status")
    return body.get("kind", "Pod").lower() + "s" == plural and (
        f"/namespaces/{namespace}/" in collection or "/namespaces/" not in collection
    )
