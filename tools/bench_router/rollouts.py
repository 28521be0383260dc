"""Rollouts of several turns: each turn sends all tokens so far, and some more."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from bench_worker.servers import MODEL

FIRST_TOKENS = 96
TURN_TOKENS = 48
REPLY_TOKENS = 12
_VOCABULARY = 400
_COUNTERS = re.compile(r"^vllm:prefix_cache_(queries|hits)_total\{[^}]*\} (\S+)", re.MULTILINE)
_sessions = itertools.count(1)

Place = Callable[[], str]
"""The address of the next request."""


@dataclass
class Rollouts:
    """Seconds and cache hits of the sessions that were played in one way.

    Fields:
        turns, sessions: seconds of each.
        hit_rate: share of the prompts' tokens that a prefix cache held.
    """

    turns: list[float] = field(default_factory=list)
    sessions: list[float] = field(default_factory=list)
    hit_rate: float = 0.0


async def play(
    place: Place, workers: Sequence[str], *, sessions: int, turns: int, at_once: int
) -> Rollouts:
    """Play a number of sessions of some turns each, `at_once` of them at a time.

    `place` says where each request goes; `workers` are the addresses of all workers, whose caches are
    counted.
    """
    done = Rollouts()
    limit = asyncio.Semaphore(at_once)
    # A new connection for each turn, as the clients of many rollouts have: a Service spreads those.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
        before = await _counters(client, workers)

        async def one() -> None:
            async with limit:
                await _session(client, place, done, turns)

        await asyncio.gather(*(one() for _ in range(sessions)))
        after = await _counters(client, workers)
    queries, hits = (after[name] - before[name] for name in ("queries", "hits"))
    done.hit_rate = hits / queries
    return done


async def seconds_in_turn(urls: Sequence[str], requests: int) -> list[list[float]]:
    """The seconds of requests for one token, over an open connection to each URL.

    The URLs take turns, so that a disturbance of the machine slows all of them.
    """
    found: list[list[float]] = [[] for _ in urls]
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        for turn in range(requests + 1):
            for url, seconds in zip(urls, found, strict=True):
                began = time.perf_counter()
                await _ask(client, url, "one", [1, 2, 3, 4], tokens=1)
                if turn:  # the first one opens the connection
                    seconds.append(time.perf_counter() - began)
    return found


async def _session(client: httpx.AsyncClient, place: Place, done: Rollouts, turns: int) -> None:
    name = f"session-{next(_sessions)}"
    dice = random.Random(name)  # noqa: S311 - not for secrets
    tokens = [dice.randrange(_VOCABULARY) for _ in range(FIRST_TOKENS)]
    began = time.perf_counter()
    for _ in range(turns):
        asked = time.perf_counter()
        await _ask(client, place(), name, tokens, tokens=REPLY_TOKENS)
        done.turns.append(time.perf_counter() - asked)
        # The reply and the next message. Which tokens a reply has does not matter here.
        tokens += [dice.randrange(_VOCABULARY) for _ in range(REPLY_TOKENS + TURN_TOKENS)]
    done.sessions.append(time.perf_counter() - began)


async def _ask(
    client: httpx.AsyncClient, url: str, session: str, prompt: Sequence[int], *, tokens: int
) -> None:
    body = {"model": MODEL, "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True}
    reply = await client.post(f"{url}/v1/completions", json=body, headers={"X-Session-ID": session})
    if reply.status_code != 200:
        raise RuntimeError(f"{url}: {reply.status_code} {reply.text[:500]}")


async def _counters(client: httpx.AsyncClient, workers: Sequence[str]) -> dict[str, float]:
    """Tokens of prompts at all workers: `queries` of the prefix caches, and `hits`."""
    found = {"queries": 0.0, "hits": 0.0}
    for url in workers:
        for name, value in _COUNTERS.findall((await client.get(f"{url}/metrics")).text):
            found[name] += float(value)
    return found
