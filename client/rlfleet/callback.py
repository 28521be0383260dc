"""A callback of `transformers.Trainer`, and so of TRL's trainers, that saves and publishes.

transformers is imported when the callback is made, never before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfleet.checkpoints import READABLE
from rlfleet.deltas.options import Deltas
from rlfleet.training import Training
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
    mode: int | None = READABLE,
    run_id: str | None = None,
    wait: bool = False,
    timeout_seconds: float = 600,
    report: Callable[[dict[str, float]], object] | None = None,
    delta: bool | Deltas = False,
) -> TrainerCallback:
    """A callback that writes the model after every `steps` steps, and publishes it to the fleet.

    Step 20 is version `20` in `<directory>/step_20`. By default training does not wait for the fleet.
    The callback looks at the outcome of a version before it writes the next one, and waits for the last one
    when training ends. An error of `publish` ends the training, in all of its processes. So does a directory that
    has files: workers may serve them, and the files of a version never change. A training that starts over
    or goes back to a checkpoint needs another directory. Add the callback in every process.

    Args:
        steps: Number of steps between two versions, at least 1.
        weights: The WeightVersion to publish to.
        directory: A directory that the workers share, below one of the fleet's weight roots.
        worker_directory: The path of this directory at the workers, if they mount it elsewhere.
        save: Writes the model into a directory, called in every process: `trainer.save_model` where
            the model is sharded (FSDP, ZeRO-3). By default `model.save_pretrained` in process 0.
        mode: Rights that are added to what was written, so that workers can read it (`make_readable`); None
            leaves the rights as they are.
        run_id: Training run; by default that of the directory (`run_of`).
        wait: Whether training waits until the fleet serves the version.
        timeout_seconds: How long to wait for a version, here or at the end of the training.
        report: Takes the figures of `Weights.metrics` after each version, such as `wandb.log`.
        delta: Write only what differs from the version before, as `Weights.publish` does. The model is saved
            into a temporary directory of process 0's machine first (`$TMPDIR`).

    Errors: ImportError without transformers. ValueError if `steps` is below 1, TypeError if `weights` is of another
        kind, such as AsyncWeights. Of the callback also
    FileExistsError.

    >>> trainer = Trainer(callbacks=[publish_every(10, weights, directory)])
    >>> trainer.train()
    >>> weights.current().spec.version
    '20'
    """
    from transformers import TrainerCallback  # noqa: PLC0415 - an optional and heavy library

    if not isinstance(weights, Weights):
        raise TypeError(
            f"weights is of the kind {type(weights).__name__}, but must be rlfleet.Weights: trainers of transformers "
            "call callbacks without an event loop"
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    training = Training(
        weights=weights,
        directory=Path(directory),
        at_workers=str(worker_directory or directory).rstrip("/"),
        save=save,
        mode=mode,
        run_id=run_id,
        wait=wait,
        timeout_seconds=timeout_seconds,
        report=report,
        delta=delta,
    )

    class PublishCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
        """Saves and publishes."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - see TrainerCallback
            """After each optimizer step."""
            if state.global_step % steps == 0:
                training.publish(state.global_step, kwargs["model"], state.is_world_process_zero)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - see TrainerCallback
            """After the last step."""
            training.end(state.is_world_process_zero)

    return PublishCallback()
