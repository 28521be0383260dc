"""The checkpoints that tests and the demo are made of."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.conftest import Weights
from tests.engine.scripts import write_checkpoints
from tests.support import damage


def test_a_checkpoint_is_complete_small_and_readable_by_all_users(weights: Weights) -> None:
    files = {file.name: file.stat() for file in weights.a.iterdir()}

    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(
        files
    )
    assert sum(status.st_size for status in files.values()) < 400_000
    assert all(status.st_mode & 0o444 == 0o444 for status in files.values())
    assert weights.a.stat().st_mode & 0o555 == 0o555
    config = json.loads((weights.a / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]


def test_a_seed_is_a_policy_and_always_the_same_one(weights: Weights, tmp_path: Path) -> None:
    # Written over each other in one process: the last one counts, and nothing is left behind.
    again = tmp_path / "again"
    write_checkpoints({again: {"seed": 2}})
    assert (again / damage.WEIGHTS).read_bytes() == (weights.b / damage.WEIGHTS).read_bytes()
    write_checkpoints({again: {"seed": 3}})
    assert (again / damage.WEIGHTS).read_bytes() == (weights.c / damage.WEIGHTS).read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["again"]


def test_seeds_differ_in_every_tensor(weights: Weights) -> None:
    first, second = (damage.read_tensors(w / damage.WEIGHTS) for w in (weights.a, weights.b))

    assert first.keys() == second.keys()
    assert all(first[name][:2] == second[name][:2] for name in first)
    assert all(first[name][2] != second[name][2] for name in first)


def test_a_sharded_checkpoint_holds_the_same_tensors(weights: Weights) -> None:
    index = json.loads((weights.sharded / "model.safetensors.index.json").read_text())
    whole = damage.read_tensors(weights.b / damage.WEIGHTS)
    shards = {
        name: damage.read_tensors(weights.sharded / file)[name]
        for name, file in index["weight_map"].items()
    }

    assert shards == whole
    assert len(set(index["weight_map"].values())) == 2
