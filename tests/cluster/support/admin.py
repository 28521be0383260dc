"""The API server as its administrator sees it, for tests that look and meddle."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from tests.cluster.support.client import Client

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """The server refused. `status`: the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def _content(response: aiohttp.ClientResponse, text: str) -> Json:
    """A path of a kind that is being installed is answered with plain text."""
    if response.content_type != "application/json":
        return {"message": text.strip()}
    answer: Json = json.loads(text)
    return answer


class Credentials:
    """Server, authority and token of a kubeconfig of the dev cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self.token: str = config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=authority)


class Admin:
    """A client with all rights, or those of a token, that tries again while the server is away."""

    def __init__(self, credentials: Credentials, *, token: str = "") -> None:
        self._server = credentials.server
        self._client = Client(credentials.tls)
        self._headers = {
            "Authorization": f"Bearer {token or credentials.token}",
            "Accept-Encoding": "identity",
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, path: str) -> Json | None:
        """An object or a list; None if it is not there."""
        try:
            return await self._request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Json) -> Json:
        """Create an object."""
        return await self._request("POST", path, body)

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""
        return await self._request("PATCH", path, body, MERGE)

    async def replace(self, path: str, body: Json) -> Json:
        """Put a whole object in the place of what is there."""
        return await self._request("PUT", path, body)

    async def apply(self, path: str, body: Json, *, manager: str, force: bool = False) -> Json:
        """Server-side apply, as a field manager.

        Errors: ApiError 409 if another manager owns a field with another value, unless forced.
        """
        query = f"fieldManager={manager}&force={'true' if force else 'false'}"
        return await self._request("PATCH", f"{path}?{query}", body, APPLY)

    async def delete(self, path: str, **options: Any) -> None:
        """Delete an object; silent if it is gone."""
        try:
            await self._request("DELETE", path, options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Events until the stream ends."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        response = await self._client.request(
            "GET",
            self._server + path,
            params={**params, "watch": "1"},
            headers=self._headers,
            timeout=timeout,
        )
        try:
            async for line in response.content:
                yield json.loads(line)
        finally:
            response.close()

    async def _request(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> Json:
        async with asyncio.timeout(60):
            while True:
                try:
                    response = await self._client.request(
                        method,
                        self._server + path,
                        data=None if body is None else json.dumps(body),
                        headers=self._headers | {"Content-Type": kind},
                        timeout=aiohttp.ClientTimeout(total=10),
                    )
                    async with response:
                        answer = _content(response, await response.text())
                    if response.status < 400:
                        return answer
                    if response.status not in {429, 500, 503}:
                        raise ApiError(response.status, str(answer.get("message", answer)))
                except (aiohttp.ClientConnectionError, TimeoutError):
                    pass  # It is being restarted.
                await asyncio.sleep(0.2)
