"""Looks for a history that breaks a promise, with whatever `fleet_operator` is on the path.

    python -m tests.model.hunt --histories 60 [--promise 3] [--rollout '{"strategy": "Rolling"}']
    python -m tests.model.hunt --story a_worker_that_hangs

Prints the first promise that breaks, as `promise 3: …`, or `every promise held`. With `--promise` it
skips histories in which another promise breaks first: one mistake often breaks two. Stories play
moments that are too rare for random histories.
"""

# ruff: noqa: T201 - its output is what it is for

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial

from tests.model.promises import PromiseBroken
from tests.model.random_history import history
from tests.model.stories import STORIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=60)
    parser.add_argument("--first", type=int, help="a seed to try before the others")
    parser.add_argument("--promise", type=int, help="pass over the others")
    parser.add_argument("--rollout", type=json.loads, help="settings of every fleet's rollouts")
    parser.add_argument("--story", choices=[s.__name__ for s in STORIES])
    given = parser.parse_args()
    tries: dict[str, Callable[[], object]] = {
        f"seed {seed}": partial(history, seed, rollout=given.rollout)
        for seed in dict.fromkeys(
            [*([given.first] if given.first is not None else []), *range(given.histories)]
        )
    }
    if given.story is not None:
        tries = {s.__name__: s for s in STORIES if s.__name__ == given.story}
    report(tries, given.promise)


def hunt_among(history_of: Callable[[int], object], description: str) -> None:
    """The command line of a module with histories of its own, by their seeds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--promise", type=int, help="pass over the others")
    given = parser.parse_args()
    seeds = range(given.histories)
    report({f"seed {seed}": partial(history_of, seed) for seed in seeds}, given.promise)


def report(tries: dict[str, Callable[[], object]], promise: int | None) -> None:
    """Play histories, and print the first promise that breaks. `promise`: only this one."""
    for name, play in tries.items():
        try:
            play()
        except PromiseBroken as broken:
            if promise not in {None, broken.number}:
                continue
            print(f"{str(broken).splitlines()[0]} ({name})")
            return
    print("every promise held")


if __name__ == "__main__":
    main()
