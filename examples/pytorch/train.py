"""A training loop that saves every few steps and asks the fleet for the weights."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlfleet import Refused, Weights, make_readable, run_of

STEPS, EVERY = 4, 2
MODEL = os.environ.get("MODEL_DIRECTORY", "/weights/base")
RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))
"""A training that starts over needs another directory: it is another run."""

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = tokenizer(["the fleet loads new weights while requests are held"], return_tensors="pt")
run_id = run_of(RUN)

with Weights("policy", namespace="rl") as weights:
    for step in range(1, STEPS + 1):
        loss = model(**batch, labels=batch["input_ids"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY:
            continue
        folder = RUN / f"step_{step}"
        folder.mkdir()  # the files of a version never change
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        make_readable(folder)  # for workers, which run as another user
        try:
            rollout = weights.publish(str(step), path=str(folder), run_id=run_id)
        except Refused as refused:
            print(f"step {step} is refused, {refused.reason}: {refused.message}")
        else:
            print(f"step {step} serves after {rollout.timings.total_seconds} s")
        print(weights.metrics(trained_version=step)["rlfleet/lag_versions"])
