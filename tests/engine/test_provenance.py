"""The promise, checked: in-flight swaps under load, and every token recomputed offline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.support.audit import audit, records_of
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

NewVersion = Callable[[], str]
MOVED_TOKENS = 8
TOKENS = 240
"""Of a request. Eight of them must fit one step of the engine, since a swap preempts all. vLLM 0.32 for CPU ends if it
reads a prompt in parts with a seed ("CPU Generator does not use offset")."""


def test_over_swaps_under_load_every_token_fits_the_label_it_carries(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion, tmp_path: Path
) -> None:
    versions = {home: weights.a}
    records: list[dict[str, Any]] = []
    over = threading.Event()

    def client(number: int) -> None:
        requests = 0
        while not over.is_set():
            prompt = [3 + number, 10 + requests % 400, 7]
            sampling = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 100 * number + requests}
            reply = worker.generate(prompt, **sampling)
            records.extend(records_of(prompt, reply, f"{number}-{requests}"))
            requests += 1

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]

        def some_ended(before: int) -> bool:
            assert not any(each.done() for each in running)
            return len(records) >= before + 4

        try:
            # Some replies must end between two swaps, so that all versions are seen.
            eventually(lambda: some_ended(0), within_seconds=120)
            for number, checkpoint in enumerate((weights.b, weights.c, weights.d) * 3):
                mode = ("keep", "abort", "keep")[number % 3]
                seen = len(records)
                versions[version := new_version()] = checkpoint
                worker.swap(version, checkpoint, mode=mode)
                eventually(lambda seen=seen: some_ended(seen), within_seconds=120)
        finally:
            over.set()
    for each in running:
        each.result()

    mixed = [record for record in records if len(record["weight_versions"]) > 1]
    named = {span["version"] for record in records for span in record["weight_versions"]}
    assert len(mixed) >= 8, "too few replies went over a swap to prove anything"
    assert named == set(versions)
    done = audit(tmp_path, records, versions)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit their labels" in done.stdout

    # The same replies with a boundary moved by a few tokens: the audit must see that, too.
    pairs = (record["weight_versions"][:2] for record in mixed)
    first, second = next(p for p in pairs if p[1]["end"] - p[1]["start"] > MOVED_TOKENS)
    first["end"] += MOVED_TOKENS
    second["start"] += MOVED_TOKENS
    caught = audit(tmp_path, records, versions)
    assert caught.returncode == 1, caught.stdout
    assert f"under {_row(first)}; {_row(second)} fits best" in caught.stdout


@pytest.mark.long
def test_a_label_that_is_deliberately_wrong_is_caught(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion, tmp_path: Path
) -> None:
    before = records_of([4, 5], worker.generate([4, 5], max_tokens=50), "before")
    worker.swap(version := new_version(), weights.b)
    after = records_of([4, 5], worker.generate([4, 5], max_tokens=50), "after")
    versions = {home: weights.a, version: weights.b}

    assert audit(tmp_path, [*before, *after], versions).returncode == 0
    mine, other = after[0]["weight_versions"][0], before[0]["weight_versions"][0]
    mine |= {name: other[name] for name in ("version", "digest")}
    done = audit(tmp_path, [*before, *after], versions)
    assert done.returncode == 1
    assert "is off by" in done.stdout
    assert f"under {_row(other)}; {version} fits best" in done.stdout


@pytest.mark.long
def test_a_version_without_a_checkpoint_cannot_be_audited(
    worker: WorkerProcess, weights: Weights, home: str, tmp_path: Path
) -> None:
    records = records_of([4, 5], worker.generate([4, 5], max_tokens=5))

    done = audit(tmp_path, records, {"another": weights.a})
    assert done.returncode == 2
    assert f"no checkpoint is given for version {home}" in done.stderr


def _row(span: dict[str, Any]) -> str:
    """The audit's name of the weights of a span."""
    return f"{span['version']}@{span['digest']}"
