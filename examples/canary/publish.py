"""Publish a version, and take it back if the canary refuses it: `publish.py STEP`."""

from __future__ import annotations

import os
import sys

from rlfleet import Refused, Weights

RUN = os.environ.get("RUN_ID", "run-1")
"""Another training is another run, and writes to another directory."""

step = sys.argv[1]
with Weights("policy", namespace="rl") as weights:
    try:
        rollout = weights.publish(step, path=f"/weights/{RUN}/step_{step}", run_id=RUN)
        print(f"step {step} serves after {rollout.timings.total_seconds} s")
    except Refused as refused:
        print(f"step {step} is refused, {refused.reason}: {refused.message}")
        print(f"version {weights.undo().version} is desired again")
