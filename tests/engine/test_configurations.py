"""A trainer loads a model of the Hub and saves it again: what computes counts, by vLLM's real code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.engine.hub_configurations import HUB
from tests.engine.scripts import output_of

SCRIPT = """
import json
import sys
import tempfile
from pathlib import Path
from transformers import CONFIG_MAPPING
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.inspection import ModelInspector
from fleet_worker.checkpoint.reference import Reference
from fleet_worker.errors import Refusal

def checkpoint(config):
    return Checkpoint("/nowhere", config, (), {}, {})

def saved_again(config):
    made = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    made.architectures = config["architectures"]
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return json.loads(Path(folder, "config.json").read_text())

class Inspector(ModelInspector):
    def code_of(self, checkpoint):  # a second for each, so only once for each model
        kind = checkpoint.config["model_type"]
        if kind not in codes:
            codes[kind] = super().code_of(checkpoint)
        return codes[kind]

codes, references, inspector = {}, {}, Inspector()

def verdict(running, offered):
    key = json.dumps(running)
    if key not in references:
        references[key] = Reference.of(checkpoint(running), inspector)
    version = checkpoint(offered)
    try:
        references[key].check(version, inspector)
    except Refusal as refusal:
        return [refusal.reason.value, refusal.message]
    return ["accepted", *version.remarks]

answers = []
for on_the_hub, changes, is_running in json.load(sys.stdin):
    saved = saved_again(on_the_hub) | changes
    answers.append(verdict(saved, on_the_hub) if is_running else verdict(on_the_hub, saved))
print("result", json.dumps(answers))
"""


def verdicts(*questions: tuple[dict[str, Any], dict[str, Any], bool]) -> Sequence[list[str]]:
    """Judge each (configuration of the Hub, changes of a trainer, whether the trainer's is running).

    Returns: `accepted` and the remarks, or the reason and the message of the refusal.
    """
    found: Sequence[list[str]] = output_of(SCRIPT, stdin=json.dumps(questions))
    return found


TRAINERS_KEYS: dict[str, Any] = {
    "unsloth_version": "2026.9",
    "unsloth_fixed": True,
    "tokenizer_class": "Qwen2TokenizerFast",
    "gradient_checkpointing": True,
    "total_flos": 1.5e18,
    "transformers.js_config": {"dtype": {"model": "q4"}},
    "pad_token_id": 5,
    "use_cache": False,
}


def test_a_configuration_that_a_trainer_saves_again_is_accepted() -> None:
    """In both directions, and with the keys that trainers add."""
    changed = [{}, {"tokenizer_class": "X"}, TRAINERS_KEYS]
    cases = [(name, c, running) for name in HUB for c in changed for running in (False, True)]
    found = verdicts(*((HUB[name], c, running) for name, c, running in cases))

    refused = [(c, v) for c, v in zip(cases, found, strict=True) if v[0] != "accepted"]
    assert refused == []
    for (_, changes, is_running), (_, *remarks) in zip(cases, found, strict=True):
        ignored = [remark for remark in remarks if "config.json" in remark]
        # A key that the version lacks needs no remark.
        assert len(ignored) == (changes is TRAINERS_KEYS and not is_running)
        for key in ("unsloth_version", "unsloth_fixed", "total_flos", "transformers.js_config"):
            assert all(f'"{key}"' in remark for remark in ignored)


CHANGES: dict[str, dict[str, Any]] = {
    "rotation": {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    "epsilon": {"rms_norm_eps": 1e-4},
    "length": {"max_position_embeddings": 65536},
    "windows": {"use_sliding_window": True},
    "kinds of layers": {"layer_types": ["sliding_attention"] * 28},
    "quantization": {"quantization_config": {"quant_method": "fp8", "unsloth_fixed": True}},
    "one layer": {"per_layer_config": {"0": {"num_attention_heads": 2}}},
    # No key of this type in transformers: vLLM's code of the model reads it.
    "a key of vLLM": {"dual_chunk_attention_config": {"chunk_size": 64}},
}


BESIDE_WEIGHTS: dict[str, Any] = {
    "author": "someone",
    "base_model": "Qwen/Qwen2.5-7B",
    "dataset": "x",
    "decoder_start_token_id": 3,
    "epoch": 2,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "ignore_index": -100,
    "keys_to_ignore_at_inference": ["past_key_values"],
    "language": ["en"],
    "license": "apache-2.0",
    "loss_type": "ForCausalLM",
    "max_new_tokens": 64,
    "max_seq_length": 4096,
    "min_p": 0.1,
    "model_max_length": 4096,
    "model_name": "mine",
    "num_labels": 1,
    "output_dir": "/out",
    "padding_side": "left",
    "presence_penalty": 0.5,
    "seed": 3,
    "sep_token_id": 4,
    "seq_length": 2048,
    "step": 1,
    "tags": ["trl"],
    "temperature": 0.7,
    "top_k": 20,
    "trainer": "grpo",
    "training_args": {"lr": 1.0},
    "use_flash_attention_2": True,
}
"""Notes of trainers. Their words also occur in code of other models, in comments and licenses."""


def test_notes_in_the_words_of_other_code_are_accepted() -> None:
    found = verdicts(*((HUB["Qwen2.5-7B"], {k: v}, False) for k, v in BESIDE_WEIGHTS.items()))

    refused = {k: v for k, v in zip(BESIDE_WEIGHTS, found, strict=True) if v[0] != "accepted"}
    assert refused == {}


def test_a_key_that_computes_is_compared_in_a_version_and_in_the_running_model() -> None:
    cases = [(name, is_running) for name in CHANGES for is_running in (False, True)]
    model = HUB["Qwen2.5-7B"]
    found = verdicts(*((model, CHANGES[name], is_running) for name, is_running in cases))

    assert {case: v[0] for case, v in zip(cases, found, strict=True)} == dict.fromkeys(
        cases, "CheckpointMismatch"
    )


def test_keys_of_nested_configurations_follow_the_same_rules() -> None:
    model = HUB["Gemma-3-4B"]
    text = model["text_config"]
    found = verdicts(
        (model, {"text_config": text | {"unsloth_fixed": True, "torch_dtype": "float32"}}, False),
        (model, {"text_config": text | {"rms_norm_eps": 1e-3}}, False),
    )

    accepted, refused = found
    assert accepted[0] == "accepted"
    assert "text_config.unsloth_fixed" in accepted[1]
    assert refused[0] == "CheckpointMismatch"
    assert "text_config.rms_norm_eps is 0.001" in refused[1]
