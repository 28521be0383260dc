"""A training loop that publishes what differs between its steps, and a full checkpoint now and then."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rlfleet import Deltas, Refused, Weights, run_of

STEPS = 6
MODEL = os.environ.get("MODEL_DIRECTORY", "/weights/base")
RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))
"""A training that starts over needs another directory: it is another run."""

model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
tokens = torch.arange(32).reshape(1, -1)
run_id = run_of(RUN)

with Weights("policy", namespace="rl") as weights:
    for step in range(1, STEPS + 1):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        try:
            weights.publish(
                step,
                model=model,  # saved to $TMPDIR, and compared with the step before
                path=RUN / f"step_{step}",
                run_id=run_id,
                delta=Deltas(anchor_every=4),
            )
        except Refused as refused:
            print(f"step {step} is refused, {refused.reason}: {refused.message}")
        written = weights.written
        if written is not None:
            kind = f"delta of {written.base_version}" if written.base_version else "full"
            print(f"step {step}: {kind}, {written.written_bytes} of {written.full_bytes} bytes")
