"""Looks for a history that breaks a promise, in the code as it is or in a mutant (`mutate`)."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.mutants import LeftOut, Mutant
from tests.model.mutate import mistaken
from tests.model.promises import PromiseBroken


def breaks(
    mutant: Mutant | LeftOut | None,
    history: Callable[[int], object],
    promise: int,
    *,
    histories: int = 40,
) -> bool:
    """Whether some history of these seeds breaks this promise. Those that break another one first are passed
    over: one mistake often breaks two.
    """
    first = mutant.seed if isinstance(mutant, Mutant) else 0
    seeds = range(first, first + histories)
    with mistaken(mutant):
        found = (broken_in(lambda seed=seed: history(seed)) for seed in seeds)
        return any(broken is not None and broken.number == promise for broken in found)


def broken_in(play: Callable[[], object], *, defects: bool = False) -> PromiseBroken | None:
    """The promise that a history breaks. `defects`: an error in the code under test counts as one."""
    try:
        play()
    except PromiseBroken as broken:
        return broken
    except Exception as error:
        if not defects:
            raise
        return PromiseBroken(0, f"no error in a decision: {error!r}")
    return None
