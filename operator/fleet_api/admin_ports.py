"""Signed calls to the admin ports of workers, over HTTP.

Answers are not trusted, as in the operator's client: a fleet's image decides what answers, and another
pod may have the address by now. An answer counts if it is signed for this call. Its length is limited.
No redirect is followed, and no answer is decompressed.
"""

from __future__ import annotations

import hmac
import itertools
import json
import secrets

import aiohttp
from yarl import URL

from fleet_api.ports import Target, WorkerReply
from fleet_worker import protocol

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
CHANGE_SECONDS = 1800.0
"""As long as the most patient trainer waits for a load (NeMo-RL, TRL)."""


class AdminPorts:
    """Implements `ports.Workers`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        # The number grows with each call, so that a worker accepts a call only once, and no late one.
        self._name = secrets.token_hex(16)
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()

    async def send(
        self, target: Target, token: str, method: str, path: str, body: bytes, driver: str
    ) -> WorkerReply:
        """See `ports.Workers`. Every outcome is a reply, never an exception."""
        instance = ""
        if method != "GET":
            known = await self._call(target, token, "GET", protocol.STATE_PATH, b"", "", "")
            instance = str((known.body or {}).get("instance", ""))
            if known.status != 200 or not instance:
                return WorkerReply(problem=known.problem or "it does not tell its state")
        return await self._call(target, token, method, path, body, driver, instance)

    async def _call(
        self,
        target: Target,
        token: str,
        method: str,
        path: str,
        body: bytes,
        driver: str,
        instance: str,
    ) -> WorkerReply:
        call = protocol.SignedCall(
            method=method,
            path=path,
            pod_uid=target.pod_uid,
            instance=instance,
            nonce=f"{self._name}-{next(self._numbers)}",
            body_digest=protocol.body_digest(body),
            driver=driver,
        )
        signature = protocol.call_signature(token, call)
        headers = {
            "Authorization": f"{protocol.SIGNATURE_SCHEME} {signature}",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            protocol.HEADER_POD_UID: call.pod_uid,
            protocol.HEADER_INSTANCE: call.instance,
            protocol.HEADER_NONCE: call.nonce,
            protocol.HEADER_BODY_DIGEST: call.body_digest,
        } | ({protocol.HEADER_DRIVER: driver} if driver else {})
        seconds = READ_SECONDS if method == "GET" else CHANGE_SECONDS
        try:
            async with self._http().request(
                method,
                URL(target.url + path, encoded=True),
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
            ) as reply:
                content = await _limited(reply)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            return WorkerReply(problem=f"it does not answer ({type(error).__name__})")
        expected = protocol.answer_signature(
            token, call=signature, status=reply.status, body=content
        )
        claimed = reply.headers.get(protocol.HEADER_SIGNATURE, "")
        if not hmac.compare_digest(expected.encode(), claimed.encode(errors="replace")):
            return WorkerReply(problem=f"its answer, {reply.status}, is not signed for this call")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return WorkerReply(problem=f"its answer, {reply.status}, is no JSON object")
        return WorkerReply(status=reply.status, body=document)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit: a transfer of weights needs its call at all workers at the same time.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _limited(reply: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in reply.content.iter_any():
        content += chunk
        if len(content) > protocol.MAX_ANSWER_BYTES:
            raise ValueError("too long")
    return bytes(content)
