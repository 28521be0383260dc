"""Looks for a history that breaks a promise, with whatever `fleet_operator` is on the path.

    python -m tests.model.hunt --histories 60 [--promise 3] [--rollout '{"strategy": "Rolling"}']

Prints the first promise that breaks, as `promise 3: …`, or `every promise held`. Told which promise
is looked for, it passes over the histories in which another one breaks first: one mistake often
breaks two, and luck decides which one shows first.
"""

# ruff: noqa: T201 - its output is what it is for

from __future__ import annotations

import argparse
import json

from tests.model.mischief import history
from tests.model.promises import PromiseBroken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=60)
    parser.add_argument("--promise", type=int, help="pass over the others")
    parser.add_argument("--rollout", type=json.loads, help="settings of every fleet's rollouts")
    given = parser.parse_args()
    for seed in range(given.histories):
        try:
            history(seed, rollout=given.rollout)
        except PromiseBroken as broken:
            if given.promise not in {None, broken.number}:
                continue
            print(f"{str(broken).splitlines()[0]} (seed {seed})")
            return
    print("every promise held")


if __name__ == "__main__":
    main()
