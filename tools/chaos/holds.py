"""Keeping a rollout in a phase for as long as a fault needs.

Tiny models pass every phase within milliseconds. A process that is stopped holds the others up at
the barrier, so that the phase lasts until it continues:

    Staging    the worker `slow` is stopped as a whole: it cannot stage
    Pausing    its engine is stopped: it stages, and cannot pause; `other` is paused
    Loading    then `other`'s engine is stopped and `slow`'s continues: all are paused, one cannot load
    Resuming   then it is the other way round again: all have loaded, one cannot resume
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from chaos.fleet import Fleet
from chaos.processes import NoSuchProcessError, Process, node_of, signal_worker
from devcluster.errors import NotRunningError

Phase = Literal["Staging", "Pausing", "Loading", "Resuming", "Serving"]
"""A phase of a rollout, or the time between two rollouts."""
PHASES: tuple[Phase, ...] = ("Staging", "Pausing", "Loading", "Resuming")


@dataclass(frozen=True)
class Held:
    """A rollout that is held in a phase.

    Fields:
        version: what was published.
        stuck: the worker that the others wait for, in the middle of this phase's work.
        waiting: one that has done this phase's work.
    """

    version: str
    stuck: str
    waiting: str


@contextmanager
def held_in(fleet: Fleet, phase: Phase, **spec: object) -> Iterator[Held]:
    """Publish the next step and keep its rollout in a phase; it continues when the block ends."""
    slow, other = sorted(fleet.pods())[:2]
    version = str(fleet.next_step())
    with ExitStack() as stopped:
        if phase == "Staging":
            stopped.enter_context(stopped_process(fleet, slow, "worker"))
            fleet.publish(version, **spec)
            _until(fleet, lambda: _says(fleet, "Staging", version), "it stages")
            yield Held(version, stuck=slow, waiting=other)
            return
        engine = stopped.enter_context(stopped_process(fleet, slow, "engine"))
        fleet.publish(version, **spec)
        _until(fleet, lambda: fleet.phase_of(other) == "paused", f"{other} is paused")
        if phase == "Pausing":
            yield Held(version, stuck=slow, waiting=other)
            return
        others = stopped.enter_context(stopped_process(fleet, other, "engine"))
        engine()
        _until(fleet, lambda: fleet.version_of(slow) == version, f"{slow} has loaded")
        if phase == "Loading":
            yield Held(version, stuck=other, waiting=slow)
            return
        stopped.enter_context(stopped_process(fleet, slow, "engine"))
        others()
        _until(fleet, lambda: fleet.phase_of(other) == "serving", f"{other} serves")
        yield Held(version, stuck=slow, waiting=other)


@contextmanager
def stopped_process(fleet: Fleet, pod: str, process: Process) -> Iterator[Callable[[], None]]:
    """Stop a process until the end of the block, or until the given function is called."""
    node = node_of(fleet, pod)
    signal_worker(fleet, pod, process, "SIGSTOP", node=node)

    def go_on() -> None:
        with suppress(NoSuchProcessError, NotRunningError):  # the fault may have ended it
            signal_worker(fleet, pod, process, "SIGCONT", node=node)

    try:
        yield go_on
    finally:
        go_on()


def _says(fleet: Fleet, phase: str, version: str) -> bool:
    status = fleet.get(f"wv/{fleet.name}").get("status", {})
    return (status.get("phase"), status.get("desiredVersion")) == (phase, version)


def _until(fleet: Fleet, holds: Callable[[], bool], what: str) -> None:
    fleet.eventually(holds, what, seconds=60)
