"""Clients that stream from several processes: one process is slower than a server whose GPU is fast."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Self

import aiohttp

from bench_worker.servers import MODEL, Server

PROMPT_TOKENS = 64
ROUTES = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/inference/v1/generate",
}


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed reply.

    Fields:
        began, ended: seconds of the wall clock, the same for all processes.
        gap: the longest time between two pieces, in seconds.
        spans: of the choice; None without any.
        why: why it failed; empty if it did not.
    """

    began: float
    ended: float
    gap: float
    spans: list[dict[str, Any]] | None
    why: str = ""

    def is_labelled(self, tokens: int) -> bool:
        """Whether the spans name the weights of each token once."""
        spans = self.spans or []
        ends = [0, *(span["end"] for span in spans)]
        return [span["start"] for span in spans] == ends[:-1] and ends[-1] == tokens


@dataclass(frozen=True, slots=True)
class Round:
    """Streams that ran at once, of `tokens` each. `cpu_seconds`: of the API server, for all."""

    streams: Sequence[Stream]
    tokens: int
    cpu_seconds: float

    @property
    def figures(self) -> dict[str, Any]:
        """The published figures."""
        done = [each for each in self.streams if not each.why]
        made = len(done) * self.tokens
        seconds = max(s.ended for s in self.streams) - min(s.began for s in self.streams)
        failed = [each.why for each in self.streams if each.why]
        return {
            "streams": len(self.streams),
            "failed": len(failed),
            "why": failed[:3],
            "seconds": seconds,
            "tokens_per_second": made / seconds,
            "cpu_seconds_per_10000_tokens": 10_000 * self.cpu_seconds / max(1, made),
            "largest_gap_seconds": max((each.gap for each in done), default=0.0),
        }

    @property
    def labels(self) -> dict[str, int]:
        """How many streams lack a label of a token, and how many have tokens of several versions."""
        done = [each for each in self.streams if not each.why]
        return {
            "wrongly_labelled": sum(not each.is_labelled(self.tokens) for each in done),
            "of_several_versions": sum(len(each.spans or []) > 1 for each in done),
        }


class Clients:
    """Processes that stream. Only while it is entered."""

    def __init__(self, processes: int) -> None:
        """`processes`: how many share the streams of a round."""
        self._processes = processes
        self._pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        list(self._pool.map(abs, range(self._processes)))  # they have started
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, server: Server, kind: str, streams: int, tokens: int) -> Callable[[], Round]:
        """Begin a round, and return what waits for its end."""
        used, url = server.cpu_seconds(), server.public + ROUTES[kind]
        shares = [len(range(n, streams, self._processes)) for n in range(self._processes)]
        running = [
            self._pool.submit(_streamed, url, kind, share, tokens, random.randrange(1 << 30))  # noqa: S311 - prompts
            for share in shares
            if share
        ]

        def end() -> Round:
            found = [stream for each in running for stream in each.result()]
            return Round(found, tokens, server.cpu_seconds() - used)

        return end


def _streamed(url: str, kind: str, streams: int, tokens: int, seed: int) -> list[Stream]:
    return asyncio.run(_all(url, [_body(kind, tokens, seed + number) for number in range(streams)]))


async def _all(url: str, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        return await asyncio.gather(*(_one(session, url, body) for body in bodies))


async def _one(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Stream:
    began, gap, last, pieces = time.time(), 0.0, 0.0, list[bytes]()
    why = ""
    try:
        async with session.post(url, json=body) as reply:
            async for piece in reply.content.iter_any():
                now = time.time()
                gap, last = max(gap, now - last if last else 0.0), now
                pieces.append(piece)
            if reply.status != 200:
                why = f"{reply.status} {b''.join(pieces)[:200]!r}"
    except (aiohttp.ClientError, TimeoutError) as error:
        why = repr(error)
    content = b"".join(pieces)
    if not why and not content.endswith(b"data: [DONE]\n\n"):
        why = f"ended with {content[-200:]!r}"
    return Stream(began, time.time(), gap, _spans_in(content) if not why else None, why)


def _spans_in(content: bytes) -> list[dict[str, Any]] | None:
    for event in content.split(b"\n\n"):
        if b'"weight_versions":[' in event:
            (choice,) = json.loads(event.removeprefix(b"data: "))["choices"]
            return list(choice["weight_versions"])
    return None


def _body(kind: str, tokens: int, seed: int) -> dict[str, Any]:
    """A request with a prompt of its own: the prefix cache must not answer."""
    drawn = random.Random(seed)  # noqa: S311 - prompts
    sampling = {"max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    ids = [drawn.randrange(20, 500) for _ in range(PROMPT_TOKENS)]
    of_kind: dict[str, dict[str, Any]] = {
        "completions": {**sampling, "prompt": ids},
        "chat": {
            **sampling,
            "messages": [{"role": "user", "content": " ".join(map(str, ids[:16]))}],
        },
        "generate": {"token_ids": ids, "sampling_params": {**sampling, "logprobs": 1}},
    }
    return {"model": MODEL, "stream": True, **of_kind[kind]}
