"""LoRA adapters whose files or configuration are refused."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.adapters import CONFIG_FILE, TINY_MODULES, WEIGHTS_FILE, write_adapter
from tests.support.lora_harness import LoraHarness
from tests.support.tiny import tiny_rules

from fleet_worker.checkpoint.blocks import BLOCK_ELEMENTS
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import OpenDirectory
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import check_written, open_adapter
from fleet_worker.protocol import Reason


def _cut(path: Path) -> None:
    os.truncate(path / WEIGHTS_FILE, 100)


def _without_weights(path: Path) -> None:
    (path / WEIGHTS_FILE).unlink()


def _without_config(path: Path) -> None:
    (path / CONFIG_FILE).unlink()


def _pickled(path: Path) -> None:
    (path / WEIGHTS_FILE).rename(path / "adapter_model.bin")


def _config_is_text(path: Path) -> None:
    (path / CONFIG_FILE).write_text("r = 2")


def _without_targets(path: Path) -> None:
    config = json.loads((path / CONFIG_FILE).read_text())
    del config["target_modules"]
    (path / CONFIG_FILE).write_text(json.dumps(config))


def _edited(edit: Callable[[damage.Tensors], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors = damage.read_tensors(path / WEIGHTS_FILE)
        edit(tensors)
        damage.write_tensors(path / WEIGHTS_FILE, tensors)

    return change


A, B = "base_model.model.embed.lora_A.weight", "base_model.model.embed.lora_B.weight"


def _only_one_side(tensors: damage.Tensors) -> None:
    del tensors[B]


def _other_inputs(tensors: damage.Tensors) -> None:
    tensors[A] = ("F32", [2, 5], bytes(40))


def _other_rank(tensors: damage.Tensors) -> None:
    tensors[A], tensors[B] = ("F32", [1, 4], bytes(16)), ("F32", [2, 1], bytes(8))


def _other_module(tensors: damage.Tensors) -> None:
    tensors["base_model.model.ebmed.lora_A.weight"] = tensors.pop(A)


def _a_whole_module(tensors: damage.Tensors) -> None:
    tensors["base_model.model.embed.weight"] = ("F32", [2, 4], bytes(32))


def _integers(tensors: damage.Tensors) -> None:
    tensors[A] = ("I32", [2, 4], bytes(32))


def _twice(tensors: damage.Tensors) -> None:
    tensors[A.removeprefix("base_model.model.")] = tensors[A]


def _nothing(tensors: damage.Tensors) -> None:
    tensors.clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_cut, Reason.CHECKPOINT_TRUNCATED),
        (_without_weights, Reason.SOURCE_NOT_FOUND),
        (_without_config, Reason.SOURCE_NOT_FOUND),
        (_pickled, Reason.CHECKPOINT_MALFORMED),
        (_config_is_text, Reason.CHECKPOINT_MALFORMED),
        (_edited(_only_one_side), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_inputs), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_rank), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_module), Reason.CHECKPOINT_MISMATCH),
        (_edited(_a_whole_module), Reason.CHECKPOINT_MISMATCH),
        (_edited(_integers), Reason.CHECKPOINT_MISMATCH),
        (_edited(_twice), Reason.CHECKPOINT_MISMATCH),
        (_edited(_nothing), Reason.CHECKPOINT_MISMATCH),
        (_without_targets, Reason.CHECKPOINT_MALFORMED),
        (shutil.rmtree, Reason.SOURCE_ABSENT),
    ],
)
async def test_a_malformed_adapter_is_refused_before_the_engine_is_called(
    lora: LoraHarness, change: Callable[[Path], None], reason: Reason
) -> None:
    path = lora.write("1")
    change(path)
    refusal = await lora.refused("1", path)

    assert refusal.reason is reason
    assert lora.harness.engine.calls == []
    failure = lora.harness.state.adapter_failure
    assert failure is not None
    assert failure.reason is reason


@pytest.mark.parametrize(
    "config",
    [
        {"r": 9},
        {"rank_pattern": {"embed": 64}},
        {"rank_pattern": {"embed": 4}},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["head"]},
        {"peft_type": "IA3"},
        {"init_lora_weights": "pissa_niter_4"},
        {"init_lora_weights": {"kind": "pissa"}},
        {"init_lora_weights": "lora_ga"},
        {"lora_ga_config": {"direction": "ArB2r"}},
        {"arrow_config": {"top_k": 3}},
        {"kasa_config": {"beta": 1e-4}},
        {"trainable_token_indices": [1]},
        {"a_key_of_a_later_release": True},
    ],
    ids=str,
)
async def test_an_adapter_that_the_engine_cannot_compute_is_refused(
    lora: LoraHarness, config: dict[str, Any]
) -> None:
    refusal = await lora.refused("1", lora.write("1", **config))

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH


@pytest.mark.parametrize(
    "config",
    [
        {"r": "2"},
        {"r": 0},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": float("nan")},
        {"lora_alpha": float("inf")},
        {"lora_alpha": True},
        {"rank_pattern": {"x": "y"}},
        {"rank_pattern": [2]},
        {"rank_pattern": {"x": 0}},
        {"rank_pattern": {"x": -2}},
        {"rank_pattern": {"x(": 2}},
        {"alpha_pattern": {"x": float("nan")}},
        {"alpha_pattern": {"x": "y"}},
        {"alpha_pattern": [2]},
        {"alpha_pattern": {"*": 2}},
        {"alpha_pattern": {"(a+)+b": 2}},
        {"rank_pattern": {".*.*.*.*x": 2}},
        {"rank_pattern": {"a?" * 30 + "a" * 30: 2}},
        {"lora_alpha": 10**400},
        {"lora_alpha": 1e300},
        {"lora_alpha": -1e300},
    ],
    ids=str,
)
async def test_a_configuration_without_ranks_is_refused(
    lora: LoraHarness, config: dict[str, Any]
) -> None:
    refusal = await lora.refused("1", lora.write("1", **config))

    assert refusal.reason is Reason.CHECKPOINT_MALFORMED


@pytest.mark.parametrize(
    "config",
    [
        {"init_lora_weights": "Gaussian"},
        {"init_lora_weights": True},
        {"use_rslora": True},
        {"rank_pattern": {"embed": 2}, "alpha_pattern": {"embed": 0.5}},
        {"rank_pattern": {r"^model\.layers\.\d+\.(self_attn|mlp)\.[a-z]+_proj": 2}},
        {"bias": "none", "modules_to_save": None, "layer_replication": []},
        {"a_key_of_a_later_release": False, "arrow_config": None, "loftq_config": {}},
        {"lora_dropout": 0.1, "task_type": "CAUSAL_LM", "megatron_core": "megatron.core"},
        {"auto_mapping": {"parent_library": "x"}, "peft_version": "0.21.2", "inference_mode": True},
        {"layers_to_transform": [0], "layers_pattern": "layers", "exclude_modules": "lm_head"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "qalora_group_size": 16},
    ],
    ids=str,
)
async def test_an_adapter_that_the_engine_computes_as_trained_is_served(
    lora: LoraHarness, config: dict[str, Any]
) -> None:
    await lora.put("1", lora.write("1", **config))

    assert lora.in_slots == ["tuned@1"]


async def test_an_adapter_outside_the_roots_is_refused(
    lora: LoraHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_adapter(elsewhere, seed=1, modules=TINY_MODULES, rank=2)

    assert (await lora.refused("1", elsewhere)).reason is Reason.SOURCE_OUTSIDE_ROOTS


async def test_a_wrong_digest_is_refused(lora: LoraHarness) -> None:
    refusal = await lora.refused("1", lora.write("1"), digest="sha256:" + "0" * 64)

    assert refusal.reason is Reason.DIGEST_MISMATCH


async def test_a_configuration_that_is_replaced_while_it_is_read_is_never_mixed(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale is in the configuration: its digest must be that of the bytes that the engine gets."""
    path = lora.write("1")
    read = OpenDirectory.read

    def then_replaced(directory: OpenDirectory, name: str, *, limit: int) -> Any:
        found = read(directory, name, limit=limit)
        other = json.loads((path / CONFIG_FILE).read_text()) | {"lora_alpha": 64}
        (path / "new").write_text(json.dumps(other))
        (path / "new").rename(path / CONFIG_FILE)
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(OpenDirectory, "read", then_replaced)
        refusal = await lora.refused("1", path)
    assert refusal.reason is Reason.CHECKPOINT_CHANGED

    await lora.put("1", path)
    (adapter,) = lora.harness.agent.adapters.in_engine()
    assert json.loads((Path(adapter.path) / CONFIG_FILE).read_text())["lora_alpha"] == 64


@pytest.mark.parametrize(
    ("hollow", "rest_is_zero", "reason"),
    [
        ("lora_A", False, Reason.SOURCE_NOT_READY),
        ("lora_B", False, Reason.SOURCE_NOT_READY),
        ("lora_B", True, None),
    ],
    ids=["lora_A", "a part of lora_B", "a lora_B of zeros"],
)
def test_an_adapter_with_parts_that_were_never_written_is_refused(
    tmp_path: Path, hollow: str, rest_is_zero: bool, reason: Reason | None
) -> None:
    """A lora_B is zero before the first step, and file systems may store zeros as holes."""
    rules, initial = tiny_rules(tmp_path)
    initial.checkpoint.close()
    path = write_adapter(tmp_path / "1", seed=1, modules=TINY_MODULES, rank=2)
    ones = b"\x01" * (4 * BLOCK_ELEMENTS)
    tensors: damage.Tensors = {
        f"base_model.model.embed.{side}.weight": ("U8", [len(ones)], ones)
        for side in ("lora_A", "lora_B")
    }
    if rest_is_zero:
        tensors[f"base_model.model.embed.{hollow}.weight"] = ("U8", [len(ones)], bytes(len(ones)))
    file = path / WEIGHTS_FILE
    damage.write_tensors(file, tensors)
    content = file.read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    begin = 8 + header + len(ones) * (hollow == "lora_B") + BLOCK_ELEMENTS
    with file.open("wb") as out:
        out.truncate(len(content))
        out.write(content[:begin])
        out.seek(begin + 2 * BLOCK_ELEMENTS)
        out.write(content[begin + 2 * BLOCK_ELEMENTS :])
    adapter = open_adapter(str(path), rules.roots)
    rules.inspector.read(adapter, budget=0, check_cancelled=lambda: None)
    try:
        check_written(adapter, rules.reference)
        found = None
    except Refusal as refusal:
        found = refusal.reason
    finally:
        adapter.close()

    assert found is reason


async def test_a_digest_allows_an_adapter_with_holes(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    (state,) = lora.harness.state.adapters
    assert state.staged is not None
    every = {"base_model.model.embed.lora_A.weight": frozenset({0})}
    monkeypatch.setattr(Checkpoint, "hollow_blocks", lambda _: every)
    lora.write("1")

    assert (await lora.refused("1", path)).reason is Reason.SOURCE_NOT_READY
    await lora.put("1", path, digest=state.staged.digest)
