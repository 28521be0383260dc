"""Many rollouts, one of which loses its operator: does the fleet lose anything?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench_scale.fleet import BenchFleet
from bench_scale.operator import Operator

Say = Callable[[str], None]


def rollouts_with_a_kill(
    fleet: BenchFleet, *, workers: int, rounds: int, start: Callable[[], Operator], say: Say
) -> dict[str, Any]:
    """Publish some versions, and kill the operator in the middle of the middle one.

    Args:
        fleet: All of its workers serve.
        workers: How many it has.
        rounds: Rollouts, that with the kill included; at least 1.
        start: Starts the operator that succeeds the killed one.
        say: Takes the progress.

    Returns: seconds of each rollout, those from the kill to its end, and `lost`: one sentence for
    each loss.

    Errors: TimeoutError if a version is not served by all workers.
    """
    pods, lost = fleet.pods(), []
    middle = rounds // 2
    seconds: list[float] = []
    taken: dict[str, Any] = {}
    for number in range(rounds):
        one = fleet.take_over(start) if number == middle else fleet.roll()
        if number == middle:
            taken = one.as_row()
            say(
                f"rollout {number + 1} of {rounds}: operator killed, {one.seconds:.2f} s to the end"
            )
        else:
            seconds.append(one.seconds)
            say(f"rollout {number + 1} of {rounds}: {one.seconds:.3f} s")
        lost += losses(number + 1, workers, loads=one.loads, applied=one.applied_seconds)
    replaced = len(pods ^ fleet.pods())
    if replaced:
        lost.append(f"{replaced} pods were made or deleted")
    say("; ".join(lost) or f"nothing was lost in {rounds} rollouts")
    return {"seconds": seconds, "takeover": taken, "lost": lost}


def losses(number: int, workers: int, *, loads: int, applied: float | None) -> list[str]:
    """The losses of one rollout, as sentences.

    Args:
        number: The number of the rollout, from 1.
        workers: Number of workers that serve its version now.
        loads: Loads of its version. Fewer than workers would serve what was not loaded.
        applied: Seconds to the status `Applied`; None if the status never said so.
    """
    lost = []
    if loads < workers:
        lost.append(f"rollout {number} has {loads} loads for {workers} workers")
    if applied is None:
        lost.append(f"rollout {number} was served, but its status never became Applied")
    return lost
