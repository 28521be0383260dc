"""The callback `publish_every`, as the handler of transformers calls it during four steps."""

from __future__ import annotations

import json
import sys

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from rlfleet import Weights, publish_every

SMALL = LlamaConfig(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    vocab_size=16,
)
figures: list[dict[str, float]] = []
with Weights("policy", namespace="rl") as weights:
    callback = publish_every(2, weights, sys.argv[1], report=figures.append)
    handler = CallbackHandler([callback], LlamaForCausalLM(SMALL), None, None, None)
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    for step in range(1, 5):
        state.global_step = step
        handler.on_step_end(None, state, control)
print(json.dumps([figure["rlfleet/applied_version"] for figure in figures]))  # noqa: T201 - the test reads it
