"""The record of the canaries, and how many workers those of one version may take from their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_operator.core.actions import Load, Stage
from fleet_operator.core.percentages import at_least
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.weights_status import RolloutPhase

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from rlfleet_resources.weights_status import WeightsStatus


def check(sim: Simulation, leader: Leader, before: WeightsStatus, after: WeightsStatus) -> None:
    """The leader has decided. Each canary that gets a call for the version is recorded with its process. While canaries
    have ended since their calls, no further worker is called if fewer than half of the replicas would serve then.
    """
    assert leader.decision is not None
    assert leader.observed is not None
    step = leader.decision.rollout.step
    if after.phase is not RolloutPhase.JUDGING or step.phase is not after.phase:
        return
    workers = {w.pod.uid: w for w in leader.observed.workers}
    name = (after.desired_version, after.desired_run_id)
    calls = [c for c in leader.decision.worker_calls if isinstance(c, Stage | Load)]
    called = {c.pod_uid for c in calls if (c.version, c.run_id) == name}
    recorded = {(r.uid, r.restarts) for r in after.canaries}
    missing = [workers[u].pod.name for u in called if (u, workers[u].pod.restarts) not in recorded]
    if missing:
        sim.fail(6, f"{missing} are canaries of {name}, and status.canaries has no such call")
    attempt = (before.desired_version, before.desired_run_id, before.retried)
    if attempt != (*name, after.retried):
        return
    alive = {uid for uid, w in workers.items() if w.pod.running}
    known = {r.uid: r.restarts for r in before.canaries}
    at_it = {u for u, times in known.items() if u in alive and workers[u].pod.restarts == times}
    serving = {uid for uid, w in workers.items() if w.standing is Standing.OPEN}
    if len(at_it) == len(known) or not (called - at_it) & serving:
        return
    replicas = leader.observed.expected_workers
    number = at_least(sim.promises.rollout.canary.workers, replicas)
    canaries = {w.pod.uid for w in step.canaries}  # one that has refused the version serves on
    left, least = len(serving - called - canaries), min(replicas // 2, replicas - number)
    if left < least:
        sim.fail(
            4, f"canaries of {name} have died, and {left} of {least} workers are left to serve"
        )
