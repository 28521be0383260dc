"""The Kubernetes API over HTTP, in raw JSON.

The `kubernetes` library does configuration and authentication (kubeconfig, exec plugins, in-cluster
token with refresh, TLS). Its models are not used: parsing 10,000 pods into them costs seconds and
hundreds of megabytes.

Source: Kubernetes API concepts (server-side apply, watch), `kubernetes` 37 `aio.client.rest`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from fleet_operator.clients.bounded_json import BoundedReader, read_resource
from fleet_operator.errors import (
    Broken,
    Conflict,
    FleetError,
    NotFound,
    Retryable,
    Silent,
    Terminal,
    TooLarge,
    Unknown,
)
from fleet_operator.places import Places
from fleet_operator.ports import WATCH_SILENCE_SECONDS, Json, KubeHooks
from rlfleet_resources.names import FIELD_MANAGER, GROUP

REQUEST_TIMEOUT_SECONDS = 15.0
REQUESTS_AT_ONCE = 16
"""More would only wait inside of a busy API server, where nothing is in turns. Watches do not count: there is one
per namespace and kind, and it would occupy a place forever."""

_METHODS = {
    "get": ("GET", "application/json"),
    "create": ("POST", "application/json"),
    "replace": ("PUT", "application/json"),
    "apply": ("PATCH", "application/apply-patch+yaml"),
    "merge": ("PATCH", "application/merge-patch+json"),
    "delete": ("DELETE", "application/json"),
}
"""Method and content type of each verb."""
_RESOURCES = f"/apis/{GROUP}/"
_NAMESPACES = "namespaces"
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def canonical(body: Json) -> bytes:
    """Encode a body as the API server itself would: sorted keys, no spaces, Go's escapes.

    The API server keeps the data of a ControllerRevision byte by byte. It refuses every later write to
    the object if its own encoding of the data differs. The garbage collector writes first, so that a
    fleet could not be deleted with `--cascade=orphan`.

    Source: Go, `encoding/json`; Kubernetes, `ValidateControllerRevisionUpdate`.
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED).encode(errors="replace")


def namespace_of(path: str) -> str:
    """The namespace in a path of the API server; empty without one."""
    parts = path.split("/")
    if _NAMESPACES not in parts:
        return ""
    return "".join(parts[parts.index(_NAMESPACES) + 1 :][:1])


class _Rest(RESTClientObject):
    """The library's TLS settings and connection pool, for bodies as bytes."""

    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send one request. Errors: those of aiohttp."""
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        options: dict[str, Any] = {}
        if self.configuration.tls_server_name:
            options["server_hostname"] = self.configuration.tls_server_name
        if self.proxy:
            options |= {"proxy": self.proxy, "proxy_headers": self.proxy_headers}
        return await self.pool_manager.request(
            method, url, headers=headers, data=body, timeout=limits, **options
        )


class KubeClient:
    """One connection pool to the API server. Implements `ports.HookedKube`."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = 0  # no limit; `_places` limits
        self._configuration = configuration
        self._rest = _Rest(configuration)
        self._places = Places(REQUESTS_AT_ONCE)
        self.hooks = KubeHooks()
        self._reader = BoundedReader()
        self._resources = BoundedReader(read_resource)

    @classmethod
    async def connect(cls) -> KubeClient:
        """Connect with the pod's service account, or else with the kubeconfig.

        Errors: Terminal without either.
        """
        configuration = Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                await config.load_kube_config(client_configuration=configuration)
            except config.ConfigException as error:
                raise Terminal(
                    f"no cluster: there is neither a pod's service account nor a kubeconfig ({error})"
                ) from error
        return cls(configuration)

    async def close(self) -> None:
        """Close the pool."""
        await self._rest.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""
        return await self._request("get", path, params)

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it exists."""
        return await self._request("create", path, {"fieldManager": FIELD_MANAGER}, body)

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""
        return await self._request("replace", path, {"fieldManager": FIELD_MANAGER}, body)

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: afterwards our fields are exactly those of the body."""
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("apply", path, params, body)

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""
        return await self._request("merge", path, {"fieldManager": FIELD_MANAGER}, body)

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it has this uid. No error if it is gone."""
        try:
            await self._request("delete", path, None, {"preconditions": {"uid": uid}})
        except (NotFound, Conflict):
            return

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream watch events until the server ends the stream.

        Errors: `Conflict` if the resourceVersion is too old (410): list again. `Silent` if nothing comes.
        `Broken` if it ends within an event, or if something else than events comes.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SILENCE_SECONDS)
        response = await self._send("GET", path, {**params, "watch": "1"}, None, None, timeout)
        try:
            await self._raise_for_status(response, "GET", path)
            async for kind, found in self._reader.lines(response.content):
                if kind == "ERROR":
                    _raise(int(found.get("code") or 500), found, "GET", path)
                yield {"type": kind, "object": found}
        except TimeoutError as error:
            seconds = WATCH_SILENCE_SECONDS
            raise Silent(f"the watch of {path} delivered nothing for {seconds:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise Broken(f"the watch of {path} broke: {_message_of(error)}") from error
        finally:
            response.close()

    async def _request(
        self, verb: str, path: str, params: Mapping[str, str] | None, body: Json | None = None
    ) -> Json:
        began = monotonic()
        async with self._places.of(namespace_of(path)):
            if verb != "get":
                self.hooks.before_write(path)
            try:
                answer = await self._answer(verb, path, params, body)
            except FleetError:
                self.hooks.after(verb, monotonic() - began)
                raise
        self.hooks.after(verb, monotonic() - began)
        return answer

    async def _answer(
        self, verb: str, path: str, params: Mapping[str, str] | None, body: Json | None
    ) -> Json:
        method, content_type = _METHODS[verb]
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
        response = await self._send(method, path, params, body, content_type, timeout)
        try:
            await self._raise_for_status(response, method, path)
            reader = self._resources if path.startswith(_RESOURCES) else self._reader
            return await reader.object(response.content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _lost(method, path, error) from error
        finally:
            response.release()

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Json | None,
        content_type: str | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        query = f"?{urlencode(params)}" if params else ""
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token.replace("bearer ", "Bearer ", 1)
        if content_type:
            headers["Content-Type"] = content_type
        url = f"{self._configuration.host}{path}{query}"
        try:
            written = canonical(body) if body is not None else None
            return await self._rest.send(method, url, headers, written, limits)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _lost(method, path, error) from error

    async def _raise_for_status(
        self, response: aiohttp.ClientResponse, method: str, path: str
    ) -> None:
        if response.status < 400:
            return
        try:
            status = await self._reader.object(response.content)
        except (ValueError, TooLarge):
            status = {}  # A proxy may answer with a page or with nothing.
        after = response.headers.get("Retry-After", "")
        _raise(response.status, status, method, path, float(after) if after.isdigit() else None)


def _lost(method: str, path: str, error: Exception) -> Retryable:
    message = f"{method} {path}: {_message_of(error)}"
    unsent = isinstance(error, aiohttp.ClientConnectorError)
    return Retryable(message) if unsent or method == "GET" else Unknown(message)


def _raise(
    code: int, status: Json, method: str, path: str, after_seconds: float | None = None
) -> None:
    message = f"{method} {path}: {code} {status.get('message') or ''}".strip()
    if code == 404:
        raise NotFound(message)
    if code in {409, 410}:
        raise Conflict(message)
    if code == 429 or code >= 500:
        raise Retryable(message, after_seconds=after_seconds)
    raise Terminal(message)


def _message_of(error: Exception) -> str:
    return str(error) or type(error).__name__
