"""Stages a version next to an event loop that is idle, or busy with fake streams; prints JSON.

The loop does in one thread what a server does for streams of tokens. A fake engine core gives each stream its
next token at once, and each stream makes an event of it and writes it out. So the loop never rests, as that of a
server whose GPU is faster than its interpreter. It is kinder to threads than a real one: `os.write` releases the
interpreter's lock, and uvloop's writes to sockets keep it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import uvloop

from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.protocol import Epoch, Source, StageRequest

STREAMS = 256
LONGEST_SECONDS = 60.0
_ALONE_SECONDS = 3.0


class FakeStreams:
    """Streams of tokens without an engine and without clients.

    Fields:
        events: how many events were written.
    """

    def __init__(self, streams: int) -> None:
        self.events = 0
        self._sink = os.open(os.devnull, os.O_WRONLY)
        self._tasks = [asyncio.create_task(self._stream(number)) for number in range(streams)]

    async def _stream(self, number: int) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        core = asyncio.get_running_loop()
        token = number
        while True:
            core.call_soon(queue.put_nowait, token)  # the fake engine core
            token = await queue.get() + 1
            choice = {"index": 0, "text": " token", "token_ids": [token], "finish_reason": None}
            event = {"id": f"cmpl-{number}", "object": "text_completion", "choices": [choice]}
            os.write(self._sink, b"data: %b\n\n" % json.dumps(event).encode())
            self.events += 1

    async def close(self) -> None:
        """End the streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        os.close(self._sink)

    async def rate(self, seconds: float) -> float:
        """Return the events per second over some time."""
        began, events = time.perf_counter(), self.events
        await asyncio.sleep(seconds)
        return (self.events - events) / (time.perf_counter() - began)


def main() -> None:
    """Measure one way of staging with both loops."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--in-threads", action="store_true", help="of this process")
    arguments = parser.parse_args()
    staging, size = _staging(arguments.path, in_threads=arguments.in_threads)
    rows = {}
    for name, streams in (("idle", 0), ("busy", STREAMS)):
        rows[name] = uvloop.run(_measured(staging, arguments.path, streams, arguments.rounds))
    json.dump({"bytes": size, "streams": STREAMS} | rows, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # without waiting for a stage that did not end in time


def _staging(path: str, *, in_threads: bool) -> tuple[Callable[[], Staging], int]:
    """Return what makes the staging of a worker on a checkpoint, and the checkpoint's size in bytes."""
    inspector = _in_threads() if in_threads else _in_a_stager()
    checkpoint = open_checkpoint(path, None)
    size = checkpoint.size_bytes
    rules = StageRules(Roots(["/"]), Reference.of(checkpoint, inspector), inspector, 1 << 60)
    checkpoint.close()

    async def make_room(_: int) -> int:
        return rules.budget_bytes

    return lambda: Staging(replace(rules), Labels(), time.monotonic, make_room), size


def _in_threads() -> Any:
    try:
        return _named("inspection", "ModelInspector")()
    except ModuleNotFoundError:  # a checkout from before there were stagers
        return _named("finite", "TorchInspector")()


def _in_a_stager() -> Any:
    stagers = _named("stagers", "Stagers")()
    stagers.keep_ready()
    return _named("inspection", "ModelInspector")(
        partial(_named("stager_pass", "StagerPass"), stagers)
    )


def _named(module: str, name: str) -> Any:
    return getattr(import_module(f"fleet_worker.checkpoint.{module}"), name)


async def _measured(
    made: Callable[[], Staging], path: str, streams: int, rounds: int
) -> dict[str, Any]:
    staging, fake = made(), FakeStreams(streams)
    alone = await fake.rate(_ALONE_SECONDS)
    seconds, speeds = [], []
    for number in range(rounds + 1):
        source = Source(path=path)
        request = StageRequest(
            version=str(number), source=source, epoch=Epoch(term=1, sequence=number)
        )
        began, events = time.perf_counter(), fake.events
        try:
            weights = await asyncio.wait_for(staging.stage(request), LONGEST_SECONDS)
        except TimeoutError:
            weights = None
        took = time.perf_counter() - began
        speed = (fake.events - events) / took / alone if streams else None
        if number or weights is None:  # the first round warms the page cache
            seconds.append(took)
            speeds.append(speed)
        if weights is None:
            break
        if not weights.in_memory:
            raise SystemExit("there is not enough memory for this measurement; use less --bytes")
        await staging.drop()
        if streams:
            alone = await fake.rate(_ALONE_SECONDS)
    ended = len(seconds) == rounds
    await fake.close()
    return {
        "seconds": statistics.median(seconds),
        "is_over": ended,
        "loop_speed": statistics.median(s for s in speeds if s is not None) if streams else None,
    }


if __name__ == "__main__":
    main()
