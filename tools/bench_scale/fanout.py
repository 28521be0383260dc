"""Fan-outs as they are written by hand: the same four barriers over the same fake workers.

A process of its own (`python -m bench_scale.fanout --client aiohttp …`): for each version on standard
input one rollout, and one line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import httpx

from bench_scale.fakes import standalone_address
from fleet_worker import protocol

Body = dict[str, Any]
Put = Callable[[int, str, Body], Awaitable[int]]
"""Worker's number, path and body → the status."""
BARRIERS = (
    ("stage", protocol.STAGE_PATH),
    ("pause", protocol.PAUSE_PATH),
    ("load", protocol.LOAD_PATH),
    ("resume", protocol.RESUME_PATH),
)
FIRST = (BARRIERS[0], BARRIERS[2], ("admit", protocol.ADMIT_PATH))
"""A worker that has just started is joining: it is not paused, and is admitted."""
CALL_SECONDS = 60.0


def body_of(kind: str, version: str, sequence: int) -> Body:
    """The body of one call."""
    body: Body = {"epoch": {"term": 1, "sequence": sequence}}
    if kind == "pause":
        return body | {"mode": "keep", "lease_seconds": 60.0}
    body |= {"version": version}
    if kind == "stage":
        body["source"] = {"path": f"/weights/step_{version}"}
    return body


async def with_aiohttp(stack: AsyncExitStack, urls: list[str], token: str) -> Put:
    """One session for all workers."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
    )
    await stack.enter_async_context(session)

    async def put(number: int, path: str, body: Body) -> int:
        async with session.put(urls[number] + path, json=body) as answer:
            await answer.json()
            return answer.status

    return put


async def with_httpx(stack: AsyncExitStack, urls: list[str], token: str) -> Put:
    """One client for each worker, as prime-rl has it."""
    # One for all: 10,000 of these would only make the start slow, which is not measured.
    verify = ssl.create_default_context()
    headers = {"Authorization": f"Bearer {token}"}
    clients = [
        httpx.AsyncClient(base_url=url, headers=headers, timeout=CALL_SECONDS, verify=verify)
        for url in urls
    ]
    for client in clients:
        stack.push_async_callback(client.aclose)

    async def put(number: int, path: str, body: Body) -> int:
        answer = await clients[number].put(path, json=body)
        answer.json()
        return answer.status_code

    return put


CLIENTS = {"aiohttp": with_aiohttp, "httpx": with_httpx}


async def roll(put: Put, workers: int, version: str, sequence: int) -> dict[str, Any]:
    """One rollout. Workers that fail are left out of what follows, as a loop by hand would."""
    alive = list(range(workers))
    phases: dict[str, float] = {}
    began, used = time.perf_counter(), time.process_time()
    for kind, path in BARRIERS if sequence > 1 else FIRST:
        barrier = time.perf_counter()
        body = body_of(kind, version, sequence)
        calls = (put(number, path, body) for number in alive)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        alive = [n for n, answer in zip(alive, answers, strict=True) if answer == 200]
        phases[kind] = time.perf_counter() - barrier
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "phases": phases,
        "failed": workers - len(alive),
    }


async def main() -> None:
    """Roll once for each line of the input."""
    parser = argparse.ArgumentParser(prog="python -m bench_scale.fanout", description=__doc__)
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parsed = parser.parse_args()
    urls = [f"http://{standalone_address(n)}:{parsed.port}" for n in range(parsed.workers)]
    async with AsyncExitStack() as stack:
        put = await CLIENTS[parsed.client](stack, urls, os.environ["FAKE_TOKEN"])
        sequence = 0
        while version := (await asyncio.to_thread(sys.stdin.readline)).strip():
            sequence += 1
            print(json.dumps(await roll(put, parsed.workers, version, sequence)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
