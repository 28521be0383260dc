"""A callback of verl that publishes each of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from rlfleet import Refused, Weights, make_readable, run_of


class PublishToFleet(CheckpointCallback):  # type: ignore[misc]  # verl has no types here
    """verl makes one, in the process that drives the training."""

    def on_save(
        self,
        trainer: Any,  # noqa: ARG002 - as verl calls it
        global_step: int,
        checkpoint_dir: str,
        async_save: bool = False,  # noqa: FBT001, FBT002 - as verl calls it
        **_: Any,
    ) -> None:
        """After each save. The fleet loads the model in Hugging Face's form."""
        if async_save:
            raise ValueError("set async_save to false: the files may not be complete yet")
        folder = Path(checkpoint_dir, "actor", "huggingface").resolve()
        make_readable(folder)  # for workers, which run as another user
        run_id = run_of(Path(checkpoint_dir).parent)
        try:
            with Weights("policy", namespace="rl") as weights:
                rollout = weights.publish(global_step, path=folder, run_id=run_id)
        except Refused as refused:
            print(f"step {global_step} is refused, {refused.reason}: {refused.message}")
        else:
            print(f"step {global_step} serves after {rollout.timings.total_seconds} s")
