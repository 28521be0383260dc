"""A training loop with FSDP that publishes every few steps: `torchrun --nproc-per-node 8 train.py`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from rlfleet import Weights, run_of

STEPS, EVERY = 4, 2
MODEL = os.environ.get("MODEL_DIRECTORY", "/weights/base")
RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))
"""A training that starts over needs another directory: it is another run."""
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group()
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).to(device)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.arange(32, device=device).reshape(1, -1)

with Weights("policy", namespace="rl") as weights:
    rollout = None
    for step in range(1, STEPS + 1):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY:
            continue
        state = get_model_state_dict(model, options=WHOLE)  # every process; whole in process 0
        if dist.get_rank() == 0:
            rollout = weights.publish(
                step,
                state_dict=state,
                config_from=MODEL,
                path=RUN / f"step_{step}",
                run_id=run_of(RUN),
                wait=False,  # the other processes go on
            )
    if rollout is not None:
        served = weights.wait(rollout)
        print(f"step {served.version} serves after {served.timings.total_seconds} s")
dist.barrier()
dist.destroy_process_group()
