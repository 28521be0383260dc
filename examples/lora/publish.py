"""Ask the fleet for the version of a LoRA adapter: `publish.py STEP`."""

from __future__ import annotations

import sys

from rlfleet import Weights

step = sys.argv[1]
with Weights("policy-sql", namespace="rl") as adapter:
    rollout = adapter.publish(step)
    print(f"adapter {rollout.weights.spec.adapter} has version {rollout.version}")
