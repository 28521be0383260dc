"""Calls that free resources of unwanted LoRA adapters: slots, and memory for staged files."""

from __future__ import annotations

from itertools import islice

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import StageLora, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import WeightsId, same_weights
from fleet_operator.core.lora_goals import lora_goals_of
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.permits import Situation, why_not
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.staging import Reading, max_staging, places_of
from fleet_operator.core.worker_view import Standing, WorkerView


def removals(observed: FleetObserved) -> list[WorkerCall]:
    """Returns the removals of adapters that no WeightVersion names, one at a time for each worker, if
    every WeightVersion can be read. Staged ones are removed, too.

    So are adapters that no worker has served and that a joining worker has with other bytes than the pinned ones.
    Without them it is admitted, also while no call can bring the pinned bytes.
    """
    if observed.is_external or observed.unread:
        return []
    wanted = {w.spec.adapter for w in observed.lora_weights}
    found: list[WorkerCall] = []
    for worker in observed.workers.where(lambda f: f.has_lora):
        adapters = worker.state.adapters if worker.state is not None and worker.accepts_lora else ()
        held = (a.name for a in adapters if a.version is not None or a.staged is not None)
        unnamed = (name for name in held if name not in wanted)
        reason = "no WeightVersion names it"
        found += [worker_calls.remove_lora(worker, n, reason=reason) for n in islice(unnamed, 1)]
    joining = observed.workers.where(lambda f: f.has_lora and f.standing is Standing.CLOSED)
    unserved = [g for g in lora_goals_of(observed) if g.applied is None] if joining else []
    for worker in joining if unserved else ():
        odd = (g.name for g in unserved if worker.accepts_lora and g.is_contradicted_by(worker))
        reason = "its digest differs from the pin of its version"
        found += [worker_calls.remove_lora(worker, n, reason=reason) for n in islice(odd, 1)]
    return found


def drops(observed: FleetObserved, weights: WeightsView, plan: RolloutPlan) -> list[WorkerCall]:
    """Returns the calls by which workers drop a staged version that is not going to be served, because
    the goal is the version that they serve already. They wait while the plan makes workers read.
    """
    # A worker that has restarted would read, beyond `maxStaging`.
    if any(isinstance(a, Reading) for a in plan.step.actions):
        return []
    name, goal = weights.spec.adapter, plan.step.goal
    settings = weights.spec.rollout.over(observed.spec.rollout)
    reason = f"it holds a version that is not the goal, {goal.label}"
    wishes: list[WorkerCall] = [
        worker_calls.put_lora(worker, name, goal, settings, reason=reason, kind=StageLora)
        for worker in observed.workers.where(lambda f: f.has_lora)
        if goal.digest and worker.accepts_lora and _holds_more(worker, name, (goal, plan.desired))
    ]
    most = max_staging(settings, observed.expected_workers)
    situation = Situation(places=places_of(wishes, observed.workers, most))
    return [a for a in wishes if why_not(a, situation) is None]


def _holds_more(worker: WorkerView, name: str, wanted: tuple[Checkpoint, Checkpoint]) -> bool:
    """Whether a worker serves the goal of an adapter, and holds a staged version that is not wanted.
    `wanted`: the goal and the desired version.
    """
    adapters = worker.state.adapters if worker.state is not None else ()
    held = next((a for a in adapters if a.name == name and a.staged is not None), None)
    served, goal = worker.adapter(name), wanted[0]
    if held is None or held.staged is None or served is None or not same_weights(served, goal):
        return False
    staged = WeightsId(held.staged.version, held.staged.run_id, held.staged.digest)
    return str(held.source) == str(goal.source) and not any(same_weights(staged, w) for w in wanted)
