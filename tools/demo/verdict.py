"""The summary of the demo: rollouts, their cost, and the policy of every token."""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

from demo.place import NAMESPACE, TRAINER, Place
from demo.sampler import Samples
from demo.story import Story
from stack.fleets import WEIGHTS_ROOT


@dataclass(frozen=True)
class Verdict:
    """The lines of the summary, and whether every check passed."""

    lines: list[str]
    holds: bool


def judge(place: Place, story: Story, samples: Samples) -> Verdict:
    """Recompute every token in the trainer's pod, and sum up."""
    audit = _audit(place, samples.file, story.good)
    # Cut-off requests are excused only where their worker was killed under them.
    unexplained = {a: n for a, n in samples.retried.items() if "is killed" not in a}
    total = sum(samples.tokens.values())
    by_version = ", ".join(f"{v}: {n:,}" for v, n in samples.tokens.items())
    pauses = f"p50 {statistics.median(story.pauses):.3f} s, max {max(story.pauses):.3f} s"
    outcomes = f"{len(samples.lost)} lost, {sum(samples.retried.values())} tried again"
    lines = [
        f"rollouts          {story.rollouts}",
        f"longest pause     {pauses}",
        f"requests          {samples.sent} sent, {samples.answered} answered, {outcomes}",
        f"tokens            {total:,} ({by_version})",
        f"replies over a swap  {samples.mixed_replies}, each token with its own label",
        "provenance        every token recomputed under the checkpoint that its label names:",
        *(f"    {line}" for line in audit.stdout.splitlines()),
    ]
    lines += [f"LOST              {why}" for why in samples.lost[:5]]
    lines += [f"TRIED AGAIN       {n} in: {act}" for act, n in unexplained.items()]
    if audit.returncode:
        lines.append(f"AUDIT             {audit.stderr.strip() or 'wrong labels'}")
    whole = samples.sent == samples.answered + len(samples.lost)
    holds = not (samples.lost or unexplained or audit.returncode) and whole and total > 0
    return Verdict(lines=lines, holds=holds)


def _audit(place: Place, replies: Path, versions: list[int]) -> subprocess.CompletedProcess[str]:
    checkpoints = [f"base={WEIGHTS_ROOT}/base"]
    checkpoints += [f"{n}={WEIGHTS_ROOT}/step_{n}" for n in versions]
    inside = "/tmp/replies.jsonl"  # noqa: S108 - the pod's own
    shell = ["kubectl", "-n", NAMESPACE, "exec", "-i", TRAINER, "--"]
    script = f'cat > {inside}; exec python3 -m fleet_worker audit {inside} --checkpoints "$@"'
    with replies.open(encoding="utf-8") as records:
        return subprocess.run(
            [*shell, "sh", "-c", script, "audit", *checkpoints],
            stdin=records,
            capture_output=True,
            text=True,
            env=place.environment,
            check=False,
        )
