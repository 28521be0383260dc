"""Processor time of the API server's process for each token, with as many streams as a GPU has.

On a GPU one Python process serves all streams of a worker, so its processor time is the limit of its
tokens per second. The engine makes tokens at a steady rate (`paced_scheduler`).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench_worker import servers, swaps
from bench_worker.servers import MODEL, Server

TOKENS = 192
SIZES = (64, 256)
PROMPT_TOKENS = 64
WARM_UP = 16
CACHE_BYTES = 256 * 1024 * 1024
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Kind:
    """A route, and whether its replies come token by token."""

    name: str
    path: str
    streamed: bool

    def body(self) -> dict[str, Any]:
        """A request. No two prompts are alike, since the prefix cache must not answer."""
        number = next(_numbers)
        ids = [
            5 + (number * 31 + place * (7 + number // 400)) % 500 for place in range(PROMPT_TOKENS)
        ]
        sampling = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}
        body: dict[str, Any] = {"model": MODEL, "stream": self.streamed}
        match self.name:
            case "generate":
                return {**body, "token_ids": ids, "sampling_params": {**sampling, "logprobs": 1}}
            case "chat":
                message = {"role": "user", "content": " ".join(map(str, ids[: PROMPT_TOKENS // 3]))}
                return {**body, **sampling, "messages": [message]}
            case _:
                return {**body, **sampling, "prompt": ids}


KINDS = tuple(
    Kind(name, path, streamed)
    for name, path in (
        ("completions", "/v1/completions"),
        ("chat", "/v1/chat/completions"),
        ("generate", "/inference/v1/generate"),
    )
    for streamed in (True, False)
)


class WrongReplyError(Exception):
    """A reply failed, or lacks tokens or labels; its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one server.

    Fields:
        cpu_seconds: processor time that the API server used for it.
        events: how many events all replies had together; 0 for whole replies.
    """

    cpu_seconds: float
    events: int


def measured(folder: Path, model: Path, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure both servers, and yield a row at a time, with what it is of."""
    engine = ("--max-num-seqs=256", "--scheduler-cls=paced_scheduler.PacedScheduler")
    options: dict[str, Any] = {
        "threads": 1,
        "cache_bytes": CACHE_BYTES,
        "engine": engine,
        "python_path": [Path(__file__).parent / "in_the_engine"],
    }
    with (
        servers.stock(folder, model, **options) as stock,
        servers.worker(folder, model, [folder], **options) as worker,
    ):
        swaps.admit(worker)
        for streams, kind in itertools.product(SIZES, KINDS):
            how = "streamed" if kind.streamed else "whole replies"
            yield (
                f"{kind.name}, {streams} at once, {how}",
                asyncio.run(_row(kind, streams, rounds, stock, worker)),
            )


async def _row(
    kind: Kind, streams: int, rounds: int, stock: Server, worker: Server
) -> dict[str, Any]:
    """Both servers at the same time: what the machine does meanwhile, it does to both."""
    await asyncio.gather(*(_round(kind, WARM_UP, server) for server in (stock, worker)))
    found: dict[str, list[Round]] = {"stock": [], "worker": []}
    for _ in range(rounds):
        took = await asyncio.gather(*(_round(kind, streams, s) for s in (stock, worker)))
        for one, server in zip(took, (stock, worker), strict=True):
            found[server.name].append(one)
    tokens = streams * TOKENS
    row: dict[str, Any] = {"kind": kind.name, "streams": streams, "streamed": kind.streamed}
    for name, all_rounds in found.items():
        cpu_seconds = statistics.median(r.cpu_seconds for r in all_rounds)
        events = statistics.median(r.events for r in all_rounds)
        row[name] = {
            "cpu_seconds_per_10000_tokens": 10_000 * cpu_seconds / tokens,
            "events_per_token": events / tokens,
        }
    pairs = list(zip(found["worker"], found["stock"], strict=True))
    row["cpu_ratios"] = [a.cpu_seconds / b.cpu_seconds for a, b in pairs]
    row["cpu_ratio"] = statistics.median(row["cpu_ratios"])
    return row


async def _round(kind: Kind, streams: int, server: Server) -> Round:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        used = server.cpu_seconds()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_ask(kind, server, client)) for _ in range(streams)]
        return Round(server.cpu_seconds() - used, sum(each.result() for each in asked))


async def _ask(kind: Kind, server: Server, client: aiohttp.ClientSession) -> int:
    """Make a request, and return the number of its events.

    Errors:
        WrongReplyError: see there.
    """
    async with client.post(server.public + kind.path, json=kind.body()) as reply:
        content = await reply.read()
    events = content.count(b"data: {")
    if reply.status != 200 or (kind.streamed and not content.endswith(b"data: [DONE]\n\n")):
        raise WrongReplyError(f"{server.name}: {reply.status} {content[-300:]!r}")
    if server.name == "worker" and b'"end":%d' % TOKENS not in content:
        raise WrongReplyError(f"no label covers all tokens: {content[-300:]!r}")
    return events
