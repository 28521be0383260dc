"""Clients that stream their generations, and count each one that is cut after its work began.

A client sends a request again only if the worker refused it before any work: the connection was
refused, or the closed latch answered 429 with `Retry-After`. Every other failure of a stream is a cut.
For example: a connection that breaks, another status, a finish reason other than `length`, too few
tokens, an end without `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

CLIENTS = 6
TOKENS = 1024
"""Some seconds of a tiny model on one core."""
VOCABULARY = 512
READ_SECONDS = 90
RETRY_SECONDS = 0.5
ATTEMPTS = 240
REFUSED = 429


class CutError(Exception):
    """A stream that did not reach its end; the message says how."""


class RefusedError(Exception):
    """A request that no work was done for; the message says how it was refused."""


@dataclass
class Streams:
    """The clients' view.

    Fields:
        whole: streams that had all their tokens and their end.
        cut: how each stream that did not reach its end was cut.
        refused: requests that were refused before any work, by reason.
        lost: requests that were refused at every attempt.
        longest_seconds: the longest whole stream, from the request to its end.
    """

    whole: int = 0
    cut: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    def problems(self) -> list[str]:
        """Why these streams do not show that nothing was cut; empty if they do."""
        none = [] if self.whole else ["no stream reached its end"]
        return [*none, *self.cut, *(f"never answered: {why}" for why in self.lost)]


async def stream(
    base_url: str,
    model: str,
    streams: Streams,
    stop: asyncio.Event,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Run the clients until `stop` is set; streams under way are read to their end first.

    Each request opens a connection of its own, which the Service gives to any worker. A server that
    ends may close a kept connection just as the next request is sent. A client cannot distinguish
    this from a cut.
    """
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            unkept = httpx.Limits(max_keepalive_connections=0)
            http = httpx.AsyncClient(
                base_url=base_url,
                trust_env=False,
                limits=unkept,
                timeout=READ_SECONDS,
                transport=transport,
            )
            group.create_task(_client(http, model, streams, stop, number, retry_seconds))


async def _client(
    http: httpx.AsyncClient,
    model: str,
    streams: Streams,
    stop: asyncio.Event,
    number: int,
    retry_seconds: float,
) -> None:
    prompts = random.Random(number)  # noqa: S311 - prompts
    async with http:
        while not stop.is_set():
            prompt = [prompts.randrange(VOCABULARY) for _ in range(prompts.randint(4, 24))]
            await _one(http, _body(model, prompt, prompts.randrange(2**31)), streams, retry_seconds)
            await asyncio.sleep(0)


def _body(model: str, prompt: list[int], seed: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
        "return_token_ids": True,
    }


async def _one(
    http: httpx.AsyncClient, body: dict[str, Any], streams: Streams, retry_seconds: float
) -> None:
    why = ""
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        try:
            await _read(http, body)
        except RefusedError as error:
            why = str(error)
            streams.refused[why] += 1
            await asyncio.sleep(retry_seconds)
            continue
        except CutError as error:
            streams.cut.append(str(error))
            return
        streams.whole += 1
        streams.longest_seconds = max(streams.longest_seconds, time.monotonic() - began)
        return
    streams.lost.append(why)


async def _read(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """Read one stream to its end. Errors: RefusedError, CutError."""
    tokens, finished = 0, ""
    try:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            await _check_status(answer)
            async for event in _events(answer):
                (choice,) = event["choices"]
                tokens += len(choice["token_ids"] or ())
                finished = choice["finish_reason"] or finished
    except httpx.ConnectError as error:
        raise RefusedError(f"{type(error).__name__} {error}") from error
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise CutError(f"{type(error).__name__} {error} after {tokens} tokens") from error
    if (finished, tokens) != ("length", body["max_tokens"]):
        raise CutError(f"finish reason {finished or None} after {tokens} tokens")


async def _check_status(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        return
    body = (await answer.aread()).decode(errors="replace")[:200]
    if answer.status_code == REFUSED and "retry-after" in answer.headers:
        raise RefusedError(f"{answer.status_code} {body}")
    raise CutError(f"{answer.status_code} {body}")


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events, to the end of the reply. Errors: CutError if `[DONE]` is not the last one."""
    data = ""
    async for line in answer.aiter_lines():
        if not line:
            continue
        data = line.removeprefix("data: ")
        if data != "[DONE]":
            yield json.loads(data)
    if data != "[DONE]":
        raise CutError("the stream ended without [DONE]")
