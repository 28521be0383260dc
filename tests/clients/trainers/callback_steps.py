"""`transformers.Trainer` with the callback `publish_every`: four steps of a tiny model, also as deltas."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from rlfleet import Deltas, Weights, publish_every

SMALL = LlamaConfig(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    vocab_size=16,
)
os.umask(0o077)
directory = Path(sys.argv[1])
# Every element of weights in float32 changes.
delta = Deltas(max_changed_share=1) if "delta" in sys.argv else False
tokens = torch.arange(8)
figures: list[dict[str, float]] = []
arguments = TrainingArguments(
    output_dir=str(directory / "trainer"),
    max_steps=4,
    per_device_train_batch_size=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
with Weights("policy", namespace="rl") as weights:
    trainer = Trainer(
        LlamaForCausalLM(SMALL),
        arguments,
        train_dataset=[{"input_ids": tokens, "labels": tokens}] * 4,
        callbacks=[
            publish_every(2, weights, directory / "run", report=figures.append, delta=delta)
        ],
    )
    trainer.train()
    applied = weights.metrics()["rlfleet/applied_version"]
    trainer.model.save_pretrained(directory / "last")
found = {"user": os.geteuid(), "reports": len(figures), "applied": applied}
print(json.dumps(found))  # noqa: T201 - the test reads it
