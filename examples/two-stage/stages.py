"""Stage 1 samples from weights that are new enough, stage 2 publishes the next: `stages.py STEPS`.

A worker with older weights answers 409. The transport then tries other workers.
"""

from __future__ import annotations

import os
import sys

import httpx

from rlfleet import DemandTransport, Sampling, Weights, weight_versions

ENDPOINT = os.environ.get("POLICY_URL", "http://policy.rl.svc:8000")
MODEL = os.environ.get("POLICY_MODEL", "qwen3-0.6b")
RUN = os.environ.get("RUN_ID", "run-1")
"""Another training is another run, and writes to another directory."""
STALENESS = 1
"""How many steps the weights of stage 1 may be behind."""

with (
    Weights("policy", namespace="rl") as weights,
    httpx.Client(transport=DemandTransport(), base_url=ENDPOINT, timeout=600) as http,
):
    for step in range(1, int(sys.argv[1]) + 1):
        oldest = step - 1 - STALENESS
        demand = Sampling(minimum=str(oldest), run_id=RUN).headers() if oldest > 0 else {}
        body = {"model": MODEL, "prompt": "The fleet", "max_tokens": 8}
        reply = http.post("/v1/completions", json=body, headers=demand).raise_for_status()
        made_by = [span.version for span in weight_versions(reply)]
        print(f"step {step} trains on tokens of {', '.join(made_by)}")
        weights.publish(str(step), path=f"/weights/{RUN}/step_{step}", run_id=RUN, wait=False)
