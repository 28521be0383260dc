"""The story of both sides, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.place import NAMESPACE, TRAINER, Place
from demo.sampler import Samples, sample
from demo.story import signal_engine
from stack.fleets import MODEL_NAME, WEIGHTS_ROOT

FIRST, LAST = 1, 7
"""Versions: all workers serve the first one when the story begins."""

KILLED_AFTER = 4
BETWEEN_SECONDS = 4.0
LIMIT_SECONDS = 240.0
PERIOD_SECONDS = 0.2


@dataclass
class Recording:
    """One side. Times are seconds since its start.

    Fields:
        workers: worker → changes of its state: (time, version that it serves, or "" while it does not).
        published: (time, version) that the trainer asked for.
        labels: (time, version that clients take for the weights of all workers). Empty if replies say it.
        killed: when the engine was killed.
        replies: (time, version of the label, tokens, tokens that other weights made).
        retried: requests that had to be sent again.
        lost: requests without an answer.
    """

    workers: dict[str, list[tuple[float, str]]]
    published: list[tuple[float, str]] = field(default_factory=list)
    labels: list[tuple[float, str]] = field(default_factory=list)
    killed: float = 0.0
    replies: list[tuple[float, str, int, int]] = field(default_factory=list)
    retried: int = 0
    lost: int = 0
    seconds: float = 0.0


States = Callable[[], Awaitable[dict[str, str]]]
"""→ worker → version that it serves, or "" while it does not serve."""


async def play(
    place: Place,
    folder: Path,
    *,
    url: str,
    workers: list[str],
    states: States,
    publish: Callable[[str], Awaitable[None]],
    label: Callable[[], str] | None,
) -> Recording:
    """Publish all versions while clients generate, and kill one engine on the way.

    Args:
        place: The cluster.
        folder: For the replies.
        url: Where clients send requests.
        workers: Names of the pods.
        states: What the workers serve now.
        publish: Returns when the trainer continues.
        label: What a client takes for the version of a reply that names none.
    """
    recording = Recording(workers={name: [] for name in workers}, published=[(0.0, str(FIRST))])
    if label is not None:
        recording.labels.append((0.0, label()))
    samples = Samples(folder / "replies.jsonl", label=label)
    async with asyncio.timeout(LIMIT_SECONDS):
        while not all((await states()).values()):  # noqa: ASYNC110 - it asks the workers
            await asyncio.sleep(PERIOD_SECONDS)
    stop = asyncio.Event()
    began = time.monotonic()
    sampling = asyncio.create_task(sample(url, MODEL_NAME, samples, stop))
    watching = asyncio.create_task(_watch(recording, states, began))
    victim = workers[1]
    for number in range(FIRST + 1, LAST + 1):
        await asyncio.sleep(BETWEEN_SECONDS)
        recording.published.append((time.monotonic() - began, str(number)))
        await publish(str(number))
        if label is not None:
            recording.labels.append((time.monotonic() - began, label()))
        if number == KILLED_AFTER:
            await asyncio.sleep(BETWEEN_SECONDS / 2)
            await asyncio.to_thread(signal_engine, place, victim, "SIGKILL")
            recording.killed = time.monotonic() - began
        if number == LAST - 1:  # the last version comes when the worker has been back for a while
            async with asyncio.timeout(LIMIT_SECONDS):
                await _is_back(recording.workers[victim])
            await asyncio.sleep(BETWEEN_SECONDS)
    await asyncio.sleep(BETWEEN_SECONDS)
    stop.set()
    await sampling
    watching.cancel()
    recording.seconds = time.monotonic() - began
    recording.retried, recording.lost = sum(samples.retried.values()), len(samples.lost)
    recording.replies = await asyncio.to_thread(_judged, place, samples.file, began)
    return recording


async def _is_back(changes: list[tuple[float, str]]) -> None:
    while not changes[-1][1]:  # noqa: ASYNC110 - the watch reads what it waits for
        await asyncio.sleep(PERIOD_SECONDS)


async def _watch(recording: Recording, states: States, began: float) -> None:
    while True:
        for name, version in (await states()).items():
            changes = recording.workers[name]
            if not changes or changes[-1][1] != version:
                changes.append((time.monotonic() - began, version))
        await asyncio.sleep(PERIOD_SECONDS)


def _judged(place: Place, replies: Path, began: float) -> list[tuple[float, str, int, int]]:
    """Recompute every token in the trainer's pod, with the worker's audit."""
    names = ("base", *(f"step_{n}" for n in range(FIRST, LAST + 1)))
    checkpoints = [f"{name.removeprefix('step_')}={WEIGHTS_ROOT}/{name}" for name in names]
    shell = ["kubectl", "-n", NAMESPACE, "exec", "-i", TRAINER, "--"]
    with replies.open(encoding="utf-8") as records:
        done = subprocess.run(
            [*shell, "python3", "-c", _AUDIT, *checkpoints],
            stdin=records,
            capture_output=True,
            text=True,
            env=place.environment,
            check=True,
        )
    wrong: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    lines = map(json.loads, replies.read_text().splitlines())
    return [
        (r["at"] - began, _versions(r), len(r["token_ids"]), wrong.get(r["id"], 0)) for r in lines
    ]


def _versions(record: dict[str, Any]) -> str:
    return "+".join(dict.fromkeys(span["version"] for span in record["weight_versions"]))


def written(recording: Recording) -> dict[str, Any]:
    """The recording as JSON, with times in hundredths of a second."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 2)
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        return [rounded(item) for item in value] if isinstance(value, list | tuple) else value

    found: dict[str, Any] = rounded(asdict(recording))
    return found


# As `python3 -m fleet_worker audit` does, with the number of wrong tokens of each reply.
_AUDIT = """
import collections, json, sys
from fleet_worker.audit.command import _by_transformers, run
from fleet_worker.audit.records import read_records
from fleet_worker.audit.versions import Checkpoints
tallies, _ = run(list(read_records(sys.stdin)), Checkpoints.parse(sys.argv[1:], []),
                 _by_transformers("cpu", None), 0.25)
texts = [text for tally in tallies.values() for text in tally.wrong]
print(json.dumps(collections.Counter(text.removeprefix("reply ").partition(": ")[0] for text in texts)))
"""
