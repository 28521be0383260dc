"""Random histories for as long as you like, on all cores.

    python -m tests.model.soak --steps 1000000     as `make soak`; the seeds are new every time
    python -m tests.model.soak --replay 471        one history, line by line

Exit code: 0 if no promise broke, else 1.
"""

# ruff: noqa: T201 - prints to the terminal

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.model import random_history
from tests.model.promises import PromiseBroken

PROGRESS_SECONDS = 5.0
MAX_KINDS, MAX_BROKEN = 5, 100
"""Where a soak stops. Histories that break in the same way may have one cause."""


@dataclass
class Soak:
    """Results so far."""

    first: int
    wanted_steps: int
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    histories: int = 0
    broken: dict[int, str] = field(default_factory=dict)

    def take(self, seed: int, steps: int, message: str) -> None:
        self.steps += steps
        self.histories += 1
        if message:
            self.broken[seed] = message
            print(f"seed {seed} breaks {message.splitlines()[0]}", flush=True)

    @property
    def is_enough(self) -> bool:
        """Whether the rest would hardly show anything new."""
        kinds = {_kind(message) for message in self.broken.values()}
        return len(kinds) >= MAX_KINDS or len(self.broken) >= MAX_BROKEN

    def progress(self) -> str:
        seconds = time.monotonic() - self.began
        return (
            f"{seconds:6.0f} s  {self.steps:>9,} of {self.wanted_steps:,} steps  "
            f"{self.histories:>6,} histories from seed {self.first} on"
            f"  {self.steps / max(seconds, 0.1):,.0f} steps/s  {len(self.broken)} broken"
        )


def _kind(message: str) -> str:
    """The kind of a break: its message without names and numbers."""
    promise, _, text = message.partition(":")
    words = text.splitlines()[0].split()
    return " ".join((promise, *(w for w in words if not any(c.isdigit() for c in w))))


def one(seed: int) -> tuple[int, int, str]:
    """One history. Returns: its seed, its steps, and what broke, if something did."""
    try:
        return seed, random_history.history(seed).steps, ""
    except PromiseBroken as broken:
        return seed, 0, str(broken)


def soak(steps: int, first: int, processes: int) -> Soak:
    """Simulate a number of steps, beginning with this seed."""
    result, shown_at, following = Soak(first, steps), 0.0, first
    with ProcessPoolExecutor(processes, initializer=random_history.collect_rarely) as pool:
        running: set[Future[tuple[int, int, str]]] = set()
        while result.steps < steps and not result.is_enough:
            while len(running) < 2 * processes:
                running.add(pool.submit(one, following))
                following += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result.take(*future.result())
            if time.monotonic() - shown_at > PROGRESS_SECONDS:
                shown_at = time.monotonic()
                print(result.progress(), flush=True)
        for future in running:
            future.cancel()
    return result


def replay(seed: int) -> int:
    """Print one history."""
    outcome = "every promise held"
    fleets: list[random_history.Simulation] = []
    try:
        random_history.history(seed, watch=fleets.append)
    except PromiseBroken as broken:
        outcome = str(broken).splitlines()[0]
    for fleet in fleets:
        print(*fleet.log, sep="\n")
        print(f"\n{fleet.steps} steps")
    print(outcome)
    return 0 if outcome == "every promise held" else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=int, metavar="SEED")
    given = parser.parse_args()
    if given.replay is not None:
        return replay(given.replay)
    result = soak(given.steps, given.seed, given.processes)
    print(result.progress())
    for seed, message in result.broken.items():
        print(f"\n{message}\nreplay: python -m tests.model.soak --replay {seed}")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
