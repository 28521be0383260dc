"""A callback of `transformers.Trainer`, and so of TRL's trainers, that saves and publishes.

transformers is imported when the callback is made, never before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfleet.weights import Weights

if TYPE_CHECKING:
    from transformers import TrainerCallback


def publish_every(
    steps: int,
    weights: Weights,
    directory: str | Path,
    *,
    worker_directory: str | None = None,
    save: Callable[[str], None] | None = None,
    run_id: str | None = None,
    wait: bool = True,
    timeout_seconds: float = 600,
    report: Callable[[dict[str, float]], object] | None = None,
) -> TrainerCallback:
    """A callback that writes the model after every `steps` steps, and publishes it to the fleet.

    Step 20 is version `20` in `<directory>/step_20`. An error of `publish` ends the training. So does a
    directory that has files: workers may serve them, and the files of a version never change. A training
    that goes back to a checkpoint needs another directory.

    Args:
        steps: Number of steps between two versions, at least 1.
        weights: The WeightVersion to publish to.
        directory: A directory that the workers share, below one of the fleet's weight roots.
        worker_directory: The path of this directory at the workers, if they mount it elsewhere.
        save: Writes the model into a directory, called in every process: `trainer.save_model` where
            the model is sharded (FSDP, ZeRO-3). By default `model.save_pretrained` in process 0.
        run_id: Training run.
        wait: Whether training waits until the fleet serves the version.
        timeout_seconds: Timeout of `publish`.
        report: Takes the figures of `Weights.metrics` after each version, such as `wandb.log`.

    Errors: ImportError without transformers; ValueError if `steps` is below 1. Of the callback also
    FileExistsError.

    >>> trainer = Trainer(callbacks=[publish_every(10, weights, directory)])
    >>> trainer.train()
    >>> weights.current().spec.version
    '20'
    """
    from transformers import TrainerCallback  # noqa: PLC0415 - an optional and heavy library

    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")

    class PublishCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
        """Saves and publishes."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - see TrainerCallback
            """After each optimizer step."""
            if state.global_step % steps:
                return
            step = state.global_step
            name = f"step_{step}"
            target = str(Path(directory) / name)
            if state.is_world_process_zero:
                _require_no_files(target)
            if save is not None:
                save(target)
            elif state.is_world_process_zero:
                kwargs["model"].save_pretrained(target)
            if not state.is_world_process_zero:
                return
            weights.publish(
                str(step),
                path=f"{str(worker_directory or directory).rstrip('/')}/{name}",
                run_id=run_id,
                wait=wait,
                timeout_seconds=timeout_seconds,
            )
            if report is not None:
                report(weights.metrics(trained_version=step))

    return PublishCallback()


def _require_no_files(directory: str) -> None:
    """Errors: FileExistsError."""
    found = next(Path(directory).glob("[!.]*"), None)  # not what a file system leaves there
    if found is not None:
        raise FileExistsError(
            f"{directory} has files of an earlier version already, such as {found.name}, which workers "
            "may serve; give another directory, or delete this one if its version was never published"
        )
