"""Publish a version, and go back to the applied one if the canary refuses it: `publish.py STEP`."""

from __future__ import annotations

import sys

from rlfleet import Refused, Weights

step = sys.argv[1]
with Weights("policy", namespace="rl") as weights:
    before = weights.current().status.applied
    try:
        rollout = weights.publish(step, path=f"/weights/run-1/step_{step}")
        print(f"step {step} serves after {rollout.timings.total_seconds} s")
    except Refused as refused:
        print(f"step {step} is refused, {refused.reason}: {refused.message}")
        if before is not None:
            weights.rollback(before.version, path=before.source.path)
            print(f"version {before.version} is desired again")
