"""`make chaos`: failures at random on a fleet of real workers under load.

Injects failures until the fleet has survived a number of rollouts, and prints how long each recovery
took. In the end every token is recomputed. The exit code is 0 only if the fleet recovered each time, no
request was lost, and every label is true. After Ctrl-C or SIGTERM it judges the rollouts so far.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stack
from chaos.fleet import Fleet, NotInTimeError
from chaos.recovery import Recovery, play
from chaos.rows import ROWS
from chaos.setup import start_fleet
from devcluster import Cluster, DevclusterError
from stack.offline import audit

MAX_STEPS = 7
"""Largest number of versions that one failure publishes."""


def main() -> int:
    """Read the command line and play. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200, help="how many (200)")
    parser.add_argument("--workers", type=int, default=2, help="in the fleet, 2 or more (2)")
    parser.add_argument("--seed", type=int, default=None, help="to play the same failures again")
    parsed = parser.parse_args()
    seed = parsed.seed if parsed.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background the first is ignored
        signal.signal(number, signal.default_int_handler)
    try:
        with Cluster.start(mounts=stack.mounts()) as cluster:
            stack.load_images(cluster)
            stack.install(cluster)
            steps = parsed.rollouts * MAX_STEPS
            fleet = start_fleet(cluster, replicas=parsed.workers, steps=steps)
            fleet.wait_whole()
            with tempfile.TemporaryDirectory() as scratch:
                return _survive(fleet, parsed.rollouts, random.Random(seed), Path(scratch))  # noqa: S311 - not for secrets
    except (DevclusterError, subprocess.CalledProcessError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1


def _survive(fleet: Fleet, rollouts: int, dice: random.Random, scratch: Path) -> int:
    replies = scratch / "replies.jsonl"
    done: list[Recovery] = []
    begun = time.monotonic()
    try:
        while len(done) < rollouts:
            row = dice.choice(ROWS)
            phase = dice.choice(row.phases)
            done.append(play(fleet, row, phase, replies))
            print(f"{len(done)}/{rollouts}  {_line(done[-1])}")
    except NotInTimeError as error:
        print(f"{len(done) + 1}/{rollouts}  {row.name}, {phase}: NOT SURVIVED\n{error}")
        return 1
    except KeyboardInterrupt:
        print("stopped")
    seconds, lost = time.monotonic() - begun, sum(len(r.lost) for r in done)
    print(f"{len(done)} rollouts survived in {seconds:.0f} s, {lost} requests lost")
    if not done:
        return 1
    print("recomputing every token; this takes about half a minute for 10 rollouts", flush=True)
    judged = audit(replies, fleet.checkpoints())
    print(judged.stdout + judged.stderr)
    return 1 if lost or judged.returncode else 0


def _line(recovery: Recovery) -> str:
    times = f"whole after {recovery.seconds:.1f} s, {recovery.sent} requests"
    worse = f", LOST {recovery.lost}" if recovery.lost else ""
    return f"{recovery.row}, {recovery.phase}: {times}, {recovery.retried} again{worse}"


if __name__ == "__main__":
    sys.exit(main())
