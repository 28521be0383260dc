"""A model whose configuration ties `lm_head` to the embeddings, and whose files have a copy of them.

Qwen3-0.6B has such a copy. transformers leaves it out when a trainer saves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.worker import WorkerProcess

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def tied(source: Path, target: Path, *, has_copy: bool) -> Path:
    """Copy a checkpoint, and tie its head to its embeddings."""
    copy_of(source, target)
    damage.edit_config(target, tie_word_embeddings=True)

    def tie(tensors: damage.Tensors) -> None:
        tensors[EMBED] = tensors[HEAD]
        if not has_copy:
            del tensors[HEAD]

    damage.edit_tensors(target, tie)
    return target


def greedy(worker: WorkerProcess) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities."""
    reply = worker.generate((5, 6, 7), max_tokens=8, temperature=0)
    entries = reply["choices"][0]["logprobs"]["content"]
    return [(entry["token_id"], entry["logprob"]) for entry in entries]


@pytest.mark.long  # tests/engine/test_kernels.py loads a tied model into each kernel
def test_swapped_and_started_workers_make_the_same_tokens_of_a_tied_model(
    weights: Weights, tmp_path: Path
) -> None:
    base = tied(weights.a, tmp_path / "base", has_copy=True)
    first = tied(weights.b, tmp_path / "1", has_copy=False)
    second = tied(weights.c, tmp_path / "2", has_copy=True)
    found = []
    for name, environment in (
        ("swapped", {}),
        ("started", {"RLFLEET_START_VERSION": "1", "RLFLEET_START_PATH": str(first)}),
    ):
        with WorkerProcess(
            tmp_path / name, model=base, roots=[tmp_path], environment=environment
        ) as worker:
            worker.wait_until_up()
            worker.must("admit", version=worker.state()["version"])
            if not environment:
                worker.swap("1", first)
            tokens = [greedy(worker)]
            worker.swap("2", second)
            found.append([*tokens, greedy(worker)])
    swapped, started = found

    assert swapped == started
    assert swapped[0] != swapped[1]
