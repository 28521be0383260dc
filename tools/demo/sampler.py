"""Clients that generate all the time, through the fleet's Service, and keep every reply.

Each opens a new connection for every request, so that the Service spreads them over the workers. A
router finds their session in `X-Session-ID`. Like other clients of the OpenAI API, they retry after a
connection error or a 5xx. A request is lost if it has no complete answer after all retries.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

CLIENTS = 4
ATTEMPTS = 60
RETRY_SECONDS = 0.5
THINK_SECONDS = 0.1
"""Between two requests of a client: two cores have engines to start as well."""
TOKENS = 96
VOCABULARY = 512


@dataclass
class Samples:
    """The clients' record.

    Fields:
        think_seconds: between two requests of a client.
        reasons: why attempts had no complete answer, beginning with the status if there was one.
        retried: attempts without a complete answer, by the act of the story they fell into.
        tokens: by the version that their label names.
        label: the version of replies that name none, when their request is sent. None: all name theirs.
    """

    file: Path
    think_seconds: float = THINK_SECONDS
    act: str = "start"
    sent: int = 0
    answered: int = 0
    lost: list[str] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    mixed_replies: int = 0
    label: Callable[[], str] | None = None

    def keep(self, prompt: list[int], reply: dict[str, Any], label: str) -> None:
        """Record one complete reply, in the form that the audit reads."""
        self.answered += 1
        with self.file.open("a", encoding="utf-8") as file:
            for choice in reply["choices"]:
                whole: dict[str, Any] = {
                    "version": label,
                    "start": 0,
                    "end": len(choice["token_ids"]),
                }
                spans = choice["weight_versions"] if self.label is None else [whole]
                for span in spans:
                    self.tokens[span["version"]] += span["end"] - span["start"]
                self.mixed_replies += len({s["version"] for s in spans}) > 1
                record = {
                    "at": time.monotonic(),
                    "id": f"{self.answered}/{choice['index']}",
                    "prompt_token_ids": prompt,
                    "token_ids": choice["token_ids"],
                    "logprobs": [e["logprob"] for e in choice["logprobs"]["content"]],
                    "weight_versions": spans,
                }
                file.write(json.dumps(record) + "\n")


async def sample(base_url: str, model: str, samples: Samples, stop: asyncio.Event) -> None:
    """Run the clients until they are stopped. Requests in flight are finished first.

    They begin when the Service leads somewhere: kube-proxy writes its rules a moment after a worker
    is ready, on a busy machine a second (measured).
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=base_url, trust_env=False, limits=limits, timeout=90) as http,
        asyncio.TaskGroup() as group,
    ):
        await _led_somewhere(http)
        for number in range(CLIENTS):
            group.create_task(_client(http, model, samples, stop, number))


async def _led_somewhere(http: httpx.AsyncClient) -> None:
    for _ in range(ATTEMPTS):
        with suppress(httpx.HTTPError):
            if (await http.get("/v1/models")).status_code == 200:
                return
        await asyncio.sleep(RETRY_SECONDS)


async def _client(
    http: httpx.AsyncClient,
    model: str,
    samples: Samples,
    stop: asyncio.Event,
    number: int,
) -> None:
    prompts = random.Random(number)  # noqa: S311 - prompts
    headers = {"X-Session-ID": f"client-{number}"}
    while not stop.is_set():
        prompt = [prompts.randrange(VOCABULARY) for _ in range(prompts.randint(4, 24))]
        samples.sent += 1
        reply, why, label = None, "", ""
        for _ in range(ATTEMPTS):
            label = samples.label() if samples.label is not None else ""
            reply, why = await _ask(http, model, prompt, prompts.randrange(2**31), headers)
            if reply is not None:
                break
            samples.retried[samples.act] += 1
            samples.reasons[why] += 1
            await asyncio.sleep(RETRY_SECONDS)
        if reply is None:
            samples.lost.append(why)
        else:
            samples.keep(prompt, reply, label)
        await asyncio.sleep(samples.think_seconds)


async def _ask(
    http: httpx.AsyncClient, model: str, prompt: list[int], seed: int, headers: dict[str, str]
) -> tuple[dict[str, Any] | None, str]:
    body = {
        "model": model,
        "token_ids": prompt,
        "sampling_params": {
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
            "logprobs": 1,
            "seed": seed,
        },
    }
    try:
        answer = await http.post("/inference/v1/generate", json=body, headers=headers)
        if answer.status_code != 200:
            return None, f"{answer.status_code} {answer.text[:200]}"
        reply: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return None, f"{type(error).__name__} {error}"
    complete = all(len(choice["token_ids"]) == TOKENS for choice in reply["choices"])
    return (reply, "") if complete else (None, "a partial reply")
