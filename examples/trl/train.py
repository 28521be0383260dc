"""TRL's GRPOTrainer, which samples from a fleet and publishes to it, without a GPU between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlfleet import Weights, publish_every, weight_versions

FLEET = os.environ.get("FLEET_URL", "http://policy.rl.svc:8000")
MODEL = os.environ.get("MODEL_DIRECTORY", "/weights/base")
NAME = os.environ.get("MODEL_NAME", "qwen3-8b")
RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))
"""A training that starts over needs another directory: it is another run."""

client = httpx.Client(base_url=FLEET, timeout=600)


def sample(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """A completion for each prompt. TRL has repeated each prompt for its group."""
    wanted = {"prompt": prompts, "max_tokens": trainer.max_completion_length, "logprobs": 0}
    # Without these, vLLM samples by generation_config.json of the fleet's model, and the loss does not.
    wanted |= {key: getattr(trainer, key) for key in ("temperature", "top_p", "top_k")}
    reply = client.post(
        "/v1/completions", json=wanted | {"model": NAME, "return_token_ids": True}
    ).raise_for_status()
    choices = sorted(reply.json()["choices"], key=lambda choice: choice["index"])
    made_by = {span.version for choice in choices for span in weight_versions(choice)}
    print(f"step {trainer.state.global_step} trains on tokens of {', '.join(sorted(made_by))}")
    return {
        "prompt_ids": [choice["prompt_token_ids"] for choice in choices],
        "completion_ids": [choice["token_ids"] for choice in choices],
        "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
    }


def variety(completions: list[str], **_: Any) -> list[float]:
    """A reward, in the place of yours: different letters."""
    return [float(len(set(text))) for text in completions]


with Weights("policy", namespace="rl") as weights:
    GRPOTrainer(
        MODEL,
        variety,
        GRPOConfig(
            output_dir=os.environ.get("OUTPUT_DIRECTORY", "trl"),
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=16,
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": ["one two three", "four five six"] * 8}),
        rollout_func=sample,
        callbacks=[publish_every(1, weights, RUN, wait=True)],
    ).train()
