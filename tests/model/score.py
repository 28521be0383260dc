"""How many mistakes random histories find: the measure of the generator.

    python -m tests.model.score --steps 20000          as `make mutants`

All mutants are tried for a few steps first, and those that were not found for more and more. Each ends at
the first promise that breaks, whichever it is: the code as it is keeps all of them (`soak`). The seeds are
always the same, so the number is that of the code.
"""

# ruff: noqa: T201 - prints to the terminal

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from tests.model.mutants import MUTANTS, Mutant
from tests.model.mutate import run_mutated

STEPS = 20_000
FIRST_STEPS = 1_000


@dataclass(frozen=True)
class Hunt:
    """The random histories of one mutant so far.

    Fields:
        found: the promise that broke, with its history; empty while all hold.
        steps: simulated until now.
        following: the seed of the next history.
    """

    mutant: Mutant
    found: str = ""
    steps: int = 0
    following: int = 0

    @property
    def name(self) -> str:
        return f"{self.mutant.promise}: {self.mutant.mistake}"


def continued(hunt: Hunt, steps: int) -> Hunt:
    """The same after more histories, until this number of steps is reached."""
    asked = ("--steps", str(steps - hunt.steps), "--first", str(hunt.following))
    said = run_mutated(hunt.mutant, "tests.model.hunt", *asked, seconds=3600)
    counted = re.search(r"^(\d+) steps until seed (\d+)$", said, re.MULTILINE)
    assert counted is not None, said
    found = said.splitlines()[0] if said.startswith("promise ") else ""
    done = hunt.steps + int(counted.group(1))
    return replace(hunt, found=found, steps=done, following=int(counted.group(2)) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each mutant, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose text has this")
    parser.add_argument("--least", type=float, default=0, help="fail below this percentage")
    given = parser.parse_args()
    os.nice(15)
    hunts = [h for h in map(Hunt, MUTANTS) if given.only in h.name]
    steps, began = min(FIRST_STEPS, given.steps), time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        while True:
            left = [pool.submit(continued, h, steps) for h in hunts if not h.found]
            hunts = [h for h in hunts if h.found]
            for hunt in (done.result() for done in as_completed(left)):
                hunts.append(hunt)
                if hunt.found:
                    print(
                        f"{hunt.steps:>9,} steps  {hunt.name}\n{'':>17}{hunt.found[:120]}",
                        flush=True,
                    )
            found = sum(bool(h.found) for h in hunts)
            print(
                f"random histories find {found} of {len(hunts)} mutants"
                f" ({100 * found / max(1, len(hunts)):.0f} %) within {steps:,} steps each;"
                f" {sum(h.steps for h in hunts):,} steps in {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if steps >= given.steps or found == len(hunts):
                break
            steps = min(2 * steps, given.steps)
    for hunt in hunts:
        if not hunt.found:
            print(f"not found: {hunt.name}")
    return 0 if 100 * found >= given.least * len(hunts) else 1


if __name__ == "__main__":
    sys.exit(main())
