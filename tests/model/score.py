"""How many mistakes random histories find: the measure of the generator.

    python -m tests.model.score --steps 20000          as `make mutants`

All mistakes are tried for a few steps first, and those that were not found for more and more. Each ends at
the first promise that breaks, whichever it is: the code as it is keeps all of them (`soak`). The seeds are
always the same, so the number is that of the code. A history that goes as without the mistake has not reached it:
then the generator is at fault. Otherwise a promise is missing, or the line is not needed.
"""

# ruff: noqa: T201 - prints to the terminal

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache

from tests.model.hunt import broken_in
from tests.model.mutants import MUTANTS, RULES
from tests.model.mutate import mistaken
from tests.model.random_history import collect_rarely, history
from tests.model.simulator import Simulation

STEPS = 20_000
FIRST_STEPS = 1_000
TRIED = [*MUTANTS, *RULES]


@dataclass(frozen=True)
class Hunt:
    """The random histories of one mistake so far.

    Fields:
        number: of the mistake in `TRIED`.
        found: the promise that broke, with its history; empty while all hold.
        steps: simulated until now.
        following: the seed of the next history.
        reached: how many histories went otherwise than without the mistake.
    """

    number: int
    found: str = ""
    steps: int = 0
    following: int = 0
    reached: int = 0

    @property
    def name(self) -> str:
        return TRIED[self.number].name


def continued(hunt: Hunt, steps: int) -> Hunt:
    """The same after more histories, until this number of steps is reached."""
    while not hunt.found and hunt.steps < steps:
        seed = hunt.following
        usual = _usual(seed)
        with mistaken(TRIED[hunt.number]):
            found, count, log = _played(seed)
        hunt = replace(
            hunt,
            found=found,
            steps=hunt.steps + count,
            following=seed + 1,
            reached=hunt.reached + (log != usual),
        )
    return hunt


@cache
def _usual(seed: int) -> int:
    """The log of a history without a mistake."""
    return _played(seed)[2]


def _played(seed: int) -> tuple[str, int, int]:
    """One history. Returns: the promise that breaks, or nothing; its steps; a hash of its log."""
    fleets: list[Simulation] = []
    broken = broken_in(lambda: history(seed, watch=fleets.append), defects=True)
    log = ((e.at, e.who, e.what) for f in fleets for e in f.log)
    said = f"{str(broken).splitlines()[0]} (seed {seed})" if broken is not None else ""
    return said, sum(f.steps for f in fleets), hash(tuple(log))


def _all_continued(
    hunts: Iterable[Hunt], steps: int, pool: ProcessPoolExecutor | None
) -> Iterator[Hunt]:
    if pool is None:
        yield from (continued(hunt, steps) for hunt in hunts)
        return
    yield from (
        done.result() for done in as_completed([pool.submit(continued, h, steps) for h in hunts])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each mistake, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mistakes whose text has this")
    parser.add_argument("--least", type=float, default=0, help="fail below this percentage")
    given = parser.parse_args()
    os.nice(15)
    logging.disable(logging.WARNING)
    collect_rarely()
    hunts = [h for h in map(Hunt, range(len(TRIED))) if given.only in h.name]
    steps, began = min(FIRST_STEPS, given.steps), time.monotonic()
    with ProcessPoolExecutor(given.processes) if given.processes > 1 else nullcontext() as pool:
        while True:
            left = [h for h in hunts if not h.found]
            hunts = [h for h in hunts if h.found]
            for hunt in _all_continued(left, steps, pool):
                hunts.append(hunt)
                if hunt.found:
                    print(
                        f"{hunt.steps:>9,} steps  {hunt.name}\n{'':>17}{hunt.found[:120]}",
                        flush=True,
                    )
            found = sum(bool(h.found) for h in hunts)
            print(
                f"random histories find {found} of {len(hunts)} mistakes"
                f" ({100 * found / max(1, len(hunts)):.0f} %) within {steps:,} steps each;"
                f" {sum(h.steps for h in hunts):,} steps in {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if steps >= given.steps or found == len(hunts):
                break
            steps = min(2 * steps, given.steps)
    for hunt in hunts:
        if not hunt.found:
            print(
                f"not found: {hunt.name} (reached by {hunt.reached} of {hunt.following} histories)"
            )
    return 0 if 100 * found >= given.least * len(hunts) else 1


if __name__ == "__main__":
    sys.exit(main())
