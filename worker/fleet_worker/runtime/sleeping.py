"""Sleeping: an engine gives the accelerator's memory to a trainer on the same device for a while.

Its weights go to the host's memory and come back as they were, so the version stays. Whoever wants
to use the engine in between wakes it first; vLLM generates again as soon as it is awake.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import PauseMode, Phase, Reason
from fleet_worker.runtime.worker import Worker

LEVELS = (0, 1)
"""0 only pauses; 1 moves the weights to the host. 2 would throw them away, under their label."""


def check_level(level: int) -> None:
    """Refuse what would leave an engine without the weights that its label names."""
    if level not in LEVELS:
        raise Refusal(
            Reason.NOT_AVAILABLE,
            "sleep levels are 0 and 1: deeper ones throw away the weights that the label names",
        )


async def sleep(worker: Worker, level: int) -> None:
    """Let a paused worker sleep. Under the worker's lock."""
    if worker.phase is not Phase.PAUSED:
        raise Refusal(Reason.WRONG_PHASE, f"a worker that is {worker.phase} does not sleep")
    if level > 0 and not worker.asleep:
        # Requests that come later wait in the engine, as they do in every pause.
        await worker.engine.pause(PauseMode.ABORT)
        worker.asleep = True  # also if the call fails: to wake an engine that is awake does nothing
        await worker.engine.sleep(level)


async def wake(worker: Worker, tags: Sequence[str] | None) -> bool:
    """Wake a worker, or parts of it; whether all of it is awake, and generates.

    Errors:
        EngineFailure (untouched): all of it was to wake, and a part of it still sleeps.
    """
    if not worker.asleep:
        return True
    worker.asleep = not await worker.engine.wake(tags)
    if worker.asleep and tags is None:
        raise EngineFailure("the engine was woken and a part of it still sleeps", touched=False)
    return not worker.asleep


async def ensure_awake(worker: Worker, tags: Sequence[str] | None = None) -> bool:
    """Make an engine usable whose worker stays paused, or closed; whether all of it is awake.

    Nothing is ever put into a sleeping engine.

    Errors:
        EngineFailure, Refusal: the worker is paused or closed as before, or closed and not at rest.
    """
    if not worker.asleep:
        return True
    closed = worker.phase is Phase.JOINING
    if closed:
        worker.enter(Event.NOT_AT_REST)  # it generates from the moment that it is awake
    try:
        awake = await wake(worker, tags)
    except BaseException:
        if closed:
            worker.lose_rest()
        else:
            await worker.hold()
        raise
    await (worker.come_to_rest() if closed else worker.hold())
    return awake
