"""Clients that generate: a number of streams at once, and how fast each request was."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from bench_worker.servers import MODEL, Server

TOKENS = 64
_prompts = itertools.count()


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one server.

    Fields:
        seconds: of the whole round.
        latencies: seconds of each request.
        cpu_seconds: processor time that the API server used for it.
    """

    seconds: float
    latencies: tuple[float, ...]
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Over all streams."""
        return len(self.latencies) * TOKENS / self.seconds


async def generate(
    server: Server, client: httpx.AsyncClient, *, streams: int, requests: int, streamed: bool
) -> Round:
    """A round.

    Args:
        server: The server of this port.
        client: An HTTP client for its public port.
        streams: Number of requests in flight at once.
        requests: How many each of them makes, one after the other.
        streamed: Whether replies come token by token.
    """
    latencies: list[float] = []

    async def stream() -> None:
        for _ in range(requests):
            began = time.perf_counter()
            await _ask(client, streamed=streamed)
            latencies.append(time.perf_counter() - began)

    began, used = time.perf_counter(), server.cpu_seconds()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    seconds = time.perf_counter() - began
    return Round(seconds, tuple(latencies), server.cpu_seconds() - used)


async def _ask(client: httpx.AsyncClient, *, streamed: bool) -> None:
    # No two prompts are alike: the prefix cache must not answer.
    start = next(_prompts) % 400
    body = {
        "model": MODEL,
        "prompt": [5 + (start + step * 7) % 500 for step in range(16)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": streamed,
    }
    if not streamed:
        (await client.post("/v1/completions", json=body)).raise_for_status()
        return
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for _ in reply.aiter_raw():
            pass


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all is."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
