"""A training loop that saves every few steps and asks the fleet for the weights."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlfleet import Refused, Weights

STEPS, EVERY = 4, 2
RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with Weights("policy", namespace="rl") as weights:
    for step in range(1, STEPS + 1):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY:
            continue
        folder = RUN / f"step_{step}"
        folder.mkdir(parents=True)
        save_file(model.state_dict(), folder / "model.safetensors")
        try:
            rollout = weights.publish(str(step), path=str(folder))
        except Refused as refused:
            print(f"step {step} is refused, {refused.reason}: {refused.message}")
        else:
            print(f"step {step} serves after {rollout.timings.total_seconds} s")
        print(weights.metrics(trained_version=step)["rlfleet/lag_versions"])
