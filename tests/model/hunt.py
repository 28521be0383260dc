"""Looks for a history that breaks a promise, in the code as it is or in a mutant (`mutate`).

    python -m tests.model.hunt --histories 60 [--promise 3] [--rollout '{"strategy": "Rolling"}']
    python -m tests.model.hunt --steps 20000 [--first 471]
    python -m tests.model.hunt --story a_worker_that_hangs

Prints the first promise that breaks, as `promise 3: …`, or `every promise held`, and the number of
simulated steps. With `--promise` it skips histories in which another promise breaks first: one mistake
often breaks two.
"""

# ruff: noqa: T201 - its output is what it is for

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import count, islice

from tests.model.promises import PromiseBroken
from tests.model.random_history import collect_rarely, history
from tests.model.simulator import Simulation
from tests.model.stories import STORIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, help="at most; None: as many as the steps are for")
    parser.add_argument("--steps", type=int, help="no history begins after this number of steps")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first history")
    parser.add_argument("--promise", type=int, help="pass over the others")
    parser.add_argument("--rollout", type=json.loads, help="settings of every fleet's rollouts")
    parser.add_argument("--story", choices=[s.__name__ for s in STORIES])
    given = parser.parse_args()
    if given.story is not None:
        report({s.__name__: s for s in STORIES if s.__name__ == given.story}, given.promise)
        return
    collect_rarely()
    steps = seed = 0
    for seed in islice(count(given.first), given.histories):
        fleets: list[Simulation] = []
        play = partial(history, seed, rollout=given.rollout, watch=fleets.append)
        broken = broken_in(play, defects=given.promise is None)
        steps += sum(f.steps for f in fleets)
        if broken is not None and given.promise in {None, broken.number}:
            print(f"{_told(broken, f'seed {seed}')}\n{steps} steps until seed {seed}")
            return
        if given.steps is not None and steps >= given.steps:
            break
    print(f"every promise held\n{steps} steps until seed {seed}")


def hunt_among(history_of: Callable[[int], object], description: str) -> None:
    """The command line of a module with histories of its own, by their seeds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--histories", type=int, default=40)
    parser.add_argument("--promise", type=int, help="pass over the others")
    given = parser.parse_args()
    seeds = range(given.histories)
    report({f"seed {seed}": partial(history_of, seed) for seed in seeds}, given.promise)


def report(tries: dict[str, Callable[[], object]], promise: int | None) -> None:
    """Play histories, and print the first promise that breaks. `promise`: only this one."""
    for name, play in tries.items():
        broken = broken_in(play)
        if broken is not None and promise in {None, broken.number}:
            print(_told(broken, name))
            return
    print("every promise held")


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


def _told(broken: PromiseBroken, name: str) -> str:
    return f"{str(broken).splitlines()[0]} ({name})"


if __name__ == "__main__":
    main()
