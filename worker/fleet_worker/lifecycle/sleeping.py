"""Sleep: the engine frees the accelerator's memory for a trainer on the same device.

Its weights move to the host's memory and come back unchanged, so the version stays. Every use of
the engine in between wakes it first. vLLM generates again as soon as it is awake.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle import closing
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import PauseMode, Phase, Reason

LEVELS = (0, 1)
"""0 only pauses; 1 moves the weights to the host. 2 would discard them and keep their label."""


def check_level(level: int) -> None:
    """Refuse a level at which the engine discards its weights."""
    if level not in LEVELS:
        raise Refusal(
            Reason.NOT_AVAILABLE,
            "unsupported sleep level: use 0 or 1; deeper levels discard the weights",
        )


async def sleep(worker: Worker, level: int) -> None:
    """Put the engine of a paused worker to sleep. Under the worker's lock."""
    if worker.phase is not Phase.PAUSED:
        raise Refusal(
            Reason.WRONG_PHASE, f"the worker is {worker.phase} and cannot sleep; pause it first"
        )
    if level > 0 and not worker.asleep:
        # Requests that come later wait in the engine, as they do in every pause.
        await worker.engine.pause(PauseMode.ABORT)
        worker.asleep = True  # also if the call fails: waking an awake engine does nothing
        await worker.engine.sleep(level)


async def wake(worker: Worker, tags: Sequence[str] | None) -> bool:
    """Wake the engine, or parts of it; returns whether all of it is awake and generates.

    Errors:
        EngineFailure (untouched): Without tags, if a part of the engine still sleeps.
    """
    if not worker.asleep:
        return True
    worker.may_rename = False  # if the answer is lost, the engine may still generate
    worker.asleep = not await worker.engine.wake(tags)
    if worker.asleep and tags is None:
        raise EngineFailure("a part of the engine still sleeps after the wake call", touched=False)
    return not worker.asleep


async def ensure_awake(worker: Worker, tags: Sequence[str] | None = None) -> bool:
    """Wake the engine of a worker that stays paused or closed; returns whether all is awake.

    A sleeping engine cannot load weights or LoRA adapters.

    Errors:
        EngineFailure, Refusal: The worker is paused or closed as before, or closed and not idle.
    """
    if not worker.asleep:
        return True
    closed = worker.phase is Phase.JOINING
    if closed:
        worker.enter(Event.NOT_IDLE)  # an awake engine generates
    try:
        awake = await wake(worker, tags)
    except BaseException:
        await closing.undo_resume(worker, closed=closed)
        raise
    await closing.silence(worker)
    return awake
