"""How many mistakes random histories find: the measure of the generator.

    python -m tests.model.score --steps 20000          as `make mutants`

Each history is played once as it is, and once more with each mistake that makes a difference in it (`reach`).
A mistake is found at the first promise that breaks, whichever it is: the code as it is keeps all of them (`soak`).
The seeds are always the same, so the number is that of the code. If a mistake makes a difference and breaks
nothing, a promise is missing, or the line is not needed. If it makes none, the generator is at fault.
"""

# ruff: noqa: T201 - prints to the terminal

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count

from tests.model.hunt import broken_in
from tests.model.mutants import MUTANTS, RULES
from tests.model.mutate import mistaken
from tests.model.random_history import collect_rarely, history
from tests.model.reach import differing
from tests.model.simulator import Simulation

STEPS = 20_000
TRIES, SELDOM = 10, 3
"""After this number of histories in which it made a difference, a mistake is played in each third history only."""
TRIED = [*MUTANTS, *RULES]


@dataclass(frozen=True)
class Played:
    """One seed.

    Fields:
        steps: of the history as it is.
        reached: number of a mistake that made a difference → what differed first.
        found: number of a mistake → the steps until a promise broke, and which one.
        broken: the promise that breaks without a mistake; "" if none does.
    """

    seed: int
    steps: int
    reached: dict[int, str]
    found: dict[int, tuple[int, str]]
    broken: str = ""


@dataclass
class Score:
    """Sums until now. `broken`: how many histories break a promise without a mistake. They are left out. `tried`: numbers of the mistakes. `reached`: in how many histories each made a difference.
    `differed`: what differed first, with the seed.
    """

    tried: frozenset[int]
    steps: int = 0
    histories: int = 0
    broken: int = 0
    reached: Counter[int] = field(default_factory=Counter)
    found: dict[int, tuple[int, str]] = field(default_factory=dict)
    differed: dict[int, str] = field(default_factory=dict)

    def take(self, played: Played) -> None:
        if played.broken:
            self.broken += 1
            print(f"{played.broken} without a mistake")
            return
        for number, (steps, promise) in played.found.items():
            if number not in self.found:
                self.found[number] = self.steps + steps, promise
                print(
                    f"{self.steps + steps:>9,} steps  {TRIED[number].name}\n{'':>17}{promise[:120]}"
                )
        self.steps += played.steps
        self.histories += 1
        self.reached.update(played.reached.keys())
        for number, what in played.reached.items():
            self.differed.setdefault(number, f", first {what} with seed {played.seed}")

    @property
    def percent(self) -> float:
        return 100 * len(self.found) / max(1, len(self.tried))

    def __str__(self) -> str:
        return (
            f"random histories find {len(self.found)} of {len(self.tried)} mistakes ({self.percent:.0f} %)"
            f" within {self.steps:,} steps"
        )


def play(seed: int, tried: frozenset[int]) -> Played:
    """One history, and with each of the mistakes that makes a difference."""
    numbers = sorted(tried)
    with differing([TRIED[n] for n in numbers]) as differ:
        steps, broken = _outcome(seed)
    if broken:
        return Played(seed, steps, {}, {}, broken)
    reached = {numbers[n]: what for n, what in differ.items()}
    found = {}
    for number in sorted(reached):
        with mistaken(TRIED[number]):
            until, promise = _outcome(seed)
        if promise:
            found[number] = until, promise
    return Played(seed, steps, reached, found)


def _outcome(seed: int) -> tuple[int, str]:
    """The steps of a history, and the promise that breaks, if one does."""
    fleets: list[Simulation] = []
    broken = broken_in(lambda: history(seed, watch=fleets.append), defects=True)
    said = f"{str(broken).splitlines()[0]} (seed {seed})" if broken is not None else ""
    return sum(f.steps for f in fleets), said


def _in_order(score: Score, pool: ProcessPoolExecutor | None, ahead: int) -> Iterator[Played]:
    """The histories of all seeds in their order. `ahead`: how many are played at once."""
    running: list[Future[Played]] = []
    for seed in count():
        left = score.tried - score.found.keys()
        if seed % SELDOM:
            left -= {number for number, times in score.reached.items() if times >= TRIES}
        if pool is None:
            yield play(seed, left)
            continue
        running.append(pool.submit(play, seed, left))
        if len(running) > ahead:
            yield running.pop(0).result()


def measure(score: Score, steps: int, processes: int) -> None:
    """Play histories until all mistakes are found, or this number of steps is reached."""
    began = shown_at = time.monotonic()
    pools = ProcessPoolExecutor(processes) if processes > 1 else nullcontext()
    with pools as pool, suppress(KeyboardInterrupt):  # then there is what it has
        for played in _in_order(score, pool, 2 * processes):
            score.take(played)
            if score.steps >= steps or len(score.found) == len(score.tried):
                break
            if time.monotonic() - shown_at > 30:
                shown_at = time.monotonic()
                print(f"{score}, {shown_at - began:.0f} s", flush=True)
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    print(f"{score}, {time.monotonic() - began:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of histories without a mistake")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mistakes whose text has this")
    parser.add_argument("--least", type=float, default=0, help="fail below this percentage")
    given = parser.parse_args()
    os.nice(max(0, 15 - os.nice(0)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    logging.disable(logging.WARNING)
    collect_rarely()
    score = Score(frozenset(n for n, m in enumerate(TRIED) if given.only in m.name))
    measure(score, given.steps, given.processes)
    for number in sorted(score.tried - score.found.keys()):
        often = f"it made a difference in {score.reached[number]} histories"
        print(f"not found: {TRIED[number].name} ({often}{score.differed.get(number, '')})")
    return 0 if score.percent >= given.least and not score.broken else 1


if __name__ == "__main__":
    sys.exit(main())
