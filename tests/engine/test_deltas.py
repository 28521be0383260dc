"""Versions that are deltas on a real engine: the same tokens as of the full versions, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.slime_deltas import write_delta
from tests.support.worker import WorkerProcess

from fleet_worker.process.manifest import digest_in

SEED = 73
VERSIONS = 3


def _next(before: Path, other: Path, target: Path, seed: int) -> Path:
    """A full version in which some elements are those of another checkpoint. Its header is the same."""
    chosen = np.random.default_rng(seed)
    file = copy_of(before, target) / damage.WEIGHTS
    content, theirs = bytearray(file.read_bytes()), (other / damage.WEIGHTS).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert content[:begin] == theirs[:begin]
    elements = np.frombuffer(content, "<u2", offset=begin)
    where = chosen.random(len(elements)) < 0.05
    elements[where] = np.frombuffer(theirs, "<u2", offset=begin)[where]
    file.write_bytes(content)
    return target


class Run:
    """A run whose versions are there in full, and as deltas that begin at the worker's model."""

    def __init__(self, weights: Weights, root: Path, name: str, **form: Any) -> None:
        self.name = name
        self.full = [weights.a]
        self.deltas = [weights.a]
        for number, other in enumerate((weights.b, weights.c, weights.d), start=1):
            full = _next(self.full[-1], other, root / "full" / name / str(number), SEED + number)
            digests = (
                {
                    "base_digest": digest_in(str(self.full[-1])),
                    "result_digest": digest_in(str(full)),
                }
                if name == "ours"
                else {}
            )
            delta = write_delta(
                self.full[-1],
                full,
                root / name / f"weight_v{number:06d}",
                version=f"{number:06d}",
                base_version=f"{number - 1:06d}",
                **form,
                **digests,
            )
            self.full.append(full)
            self.deltas.append(delta)

    def label(self, number: int) -> str:
        return f"{self.name}-{number}"


def _read_bytes(delta: Path) -> int:
    return sum(file.stat().st_size for file in delta.glob("*.safetensors"))


def test_deltas_in_both_forms_are_the_full_versions(
    driven: WorkerProcess, weights: Weights
) -> None:
    """tests/e2e/test_delta_fleet.py kills a worker in the middle of a chain, which it joins again."""
    root = weights.root / "deltas"
    runs = [
        Run(weights, root, "slime", encoding="xor", checksums="blake3", files=2),
        Run(weights, root, "ours", encoding="overwrite", checksums="xxh3-128"),
    ]
    tokens: dict[str, Any] = {}
    base = driven.greedy()
    for run in runs:
        for number in range(1, VERSIONS + 1):
            state = driven.swap(f"full-{run.label(number)}", run.full[number])
            tokens[run.label(number)] = (driven.greedy(), state["digest"])
    assert tokens["slime-3"] == tokens["ours-3"]
    assert tokens["slime-3"][0] != base

    for run in runs:
        for number in range(1, VERSIONS + 1):
            if number == 1:  # the first base is the model that the worker was started with
                driven.swap(f"again-{run.name}", runs[0].full[1])
            state = driven.swap(run.label(number), run.deltas[number])
            assert (driven.greedy(), state["digest"]) == tokens[run.label(number)]
            read = state["timings"]["read_bytes"] - _read_bytes(run.deltas[number])
            # The model is not in the engine any more, so its files are the first base.
            size = (weights.a / damage.WEIGHTS).stat().st_size
            assert read == (size if number == 1 else 0)
        state = driven.swap(run.label(1), run.deltas[1])
        assert (driven.greedy(), state["digest"]) == tokens[run.label(1)]
        # On CPUs vLLM packs weights.
        assert state["timings"]["in_place"] is False
        assert "keeps a packed copy of the weight" in state["timings"]["why_full"]
    assert driven.metric("rlfleet_worker_stage_read_bytes_total") > 0
