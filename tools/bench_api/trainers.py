"""Three trainers that pause and resume all workers of a fleet: one by the fleet's address, two by hand.

Those by hand know the workers' addresses already. They send the calls of the RL API to the same workers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp
import httpx

CALL_SECONDS = 60.0
Trainer = Callable[[str], Awaitable[None]]
"""Sends `POST <path>` to the fleet. Errors: RuntimeError if a worker does not follow."""


async def by_address(stack: AsyncExitStack, root: str, key: str) -> Trainer:
    """One call to the RL API."""
    session = await stack.enter_async_context(_session(key))

    async def post(path: str) -> None:
        await _post(session, root + path)

    return post


async def with_aiohttp(stack: AsyncExitStack, workers: Sequence[str], token: str) -> Trainer:
    """One session for all workers."""
    session = await stack.enter_async_context(_session(token))

    async def post(path: str) -> None:
        await asyncio.gather(*(_post(session, url + path) for url in workers))

    return post


async def with_httpx(stack: AsyncExitStack, workers: Sequence[str], token: str) -> Trainer:
    """One client for each worker, as prime-rl has it."""
    verify = ssl.create_default_context()  # one for all: the start is not measured
    headers = {"Authorization": f"Bearer {token}"}
    clients = [
        httpx.AsyncClient(base_url=url, headers=headers, timeout=CALL_SECONDS, verify=verify)
        for url in workers
    ]
    for client in clients:
        stack.push_async_callback(client.aclose)

    async def post(path: str) -> None:
        for reply in await asyncio.gather(*(client.post(path) for client in clients)):
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.url}: {reply.status_code} {reply.text[:500]}")

    return post


async def seconds_of(trainer: Trainer) -> list[float]:
    """The seconds of a pause and of a resumption."""
    found = []
    for path in ("/pause?mode=keep", "/resume"):
        began = time.perf_counter()
        await trainer(path)
        found.append(time.perf_counter() - began)
    return found


def _session(token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
    )


async def _post(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url) as reply:
        if reply.status != 200:
            raise RuntimeError(f"{url}: {reply.status} {(await reply.text())[:500]}")
        await reply.json()
