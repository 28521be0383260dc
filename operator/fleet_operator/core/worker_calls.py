"""Builds the calls to workers for all planners."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from fleet_operator.api.fleet import Rollout
from fleet_operator.core.actions import (
    Admit,
    Apply,
    CanaryPrompts,
    CompareFiles,
    CompareLora,
    Fence,
    Load,
    Pause,
    PutLora,
    RemoveLora,
    Resume,
    Stage,
    StageLora,
    WorkerCall,
)
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import TRANSFERRED_DIGEST, WeightsId, file_digest
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import PauseMode

DEFAULT_PROMPTS = (
    "The capital of France is",
    "Q: What is 17 + 25? A:",
    "def fibonacci(n):\n",
    "Once upon a time there was",
    "1, 2, 3, 4, 5,",
    "To be, or not to be,",
    "The three laws of thermodynamics say that",
    "Dear customer,\n",
)
"""Canary prompts of a fleet that names none."""
PAUSE_MODES = {mode.title(): mode for mode in PauseMode}
"""Values of `rollout.pause.mode` as vLLM names them."""
LEASE_SECONDS = 30.0
"""A pause ends by itself this long after the last call of the operator. Longer than a standby needs to
take over (20 s)."""
RENEW_BELOW_SECONDS = 20.0
"""A pause is renewed when it would end within this time: as long as a standby needs to take over."""
_O = TypeVar("_O", Resume, Admit)
_UNKNOWN = WeightsId("None")
"""The name of unknown weights: a worker refuses to open at it."""


def stage(
    worker: WorkerView,
    goal: Checkpoint,
    settings: Rollout,
    *,
    reason: str,
    kind: type[Stage] = Stage,
) -> Stage:
    """Asks a worker to check the goal and to hold its bytes."""
    return kind(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=goal.version,
        run_id=goal.run_id,
        digest=goal.digest,
        source=goal.source,
        timeout_seconds=settings.timeouts.stage_seconds,
    )


def pause(worker: WorkerView, settings: Rollout, *, reason: str) -> Pause:
    """Asks a worker to stop generating, or to stay paused."""
    return Pause(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        mode=PAUSE_MODES[settings.pause.mode],
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
        lease_seconds=LEASE_SECONDS,
    )


def load(worker: WorkerView, goal: Checkpoint, settings: Rollout, *, reason: str) -> Load:
    """Asks a worker to load the staged goal into its engine."""
    return Load(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=goal.version,
        run_id=goal.run_id,
        digest=goal.digest,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def apply(worker: WorkerView, goal: Checkpoint, settings: Rollout, *, reason: str) -> Apply:
    """Asks a worker to pause, load the staged goal and resume by itself."""
    return Apply(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=goal.version,
        run_id=goal.run_id,
        digest=goal.digest,
        mode=PAUSE_MODES[settings.pause.mode],
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
        lease_seconds=LEASE_SECONDS,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def resume(worker: WorkerView, *, reason: str) -> Resume:
    """Lets a held worker generate with the weights that it reports."""
    return _opens(Resume, worker, reason)


def admit(worker: WorkerView, *, reason: str) -> Admit:
    """Opens the latch of a joining worker at the weights that it reports."""
    return _opens(Admit, worker, reason)


def _opens(kind: type[_O], worker: WorkerView, reason: str) -> _O:
    version, run_id, digest = worker.loaded or _UNKNOWN
    return kind(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=version,
        run_id=run_id,
        digest=None if digest == TRANSFERRED_DIGEST else digest,
    )


def take_out_of_service(worker: WorkerView, *, reason: str) -> Fence | Quarantine:
    """Takes a worker out of service: with a fence, or with a quarantine if the worker is silent or ignores
    fences.
    """
    if worker.standing in {Standing.UNKNOWN, Standing.ABSENT} or worker.ignores_fences:
        return Quarantine(pod_name=worker.pod.name, pod_uid=worker.pod.uid, reason=reason)
    return fence_now(worker, reason=reason)


def fence_now(worker: WorkerView, *, reason: str) -> Fence:
    """Closes a worker's latch and ends its requests at once."""
    return Fence(pod_uid=worker.pod.uid, pod_name=worker.pod.name, reason=reason)


def lease_remaining_seconds(worker: WorkerView) -> float:
    """Returns the seconds until a worker's pause ends by itself; 0 if it is not paused."""
    if worker.state is None or worker.state.pause is None:
        return 0
    return worker.state.pause.lease_remaining_seconds - worker.state_age_seconds


def fence_after_drain(worker: WorkerView, settings: Rollout, *, reason: str) -> Fence:
    """Closes the latch of a healthy worker after its requests have ended, or after the drain timeout."""
    return Fence(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
    )


def drain_out_of_service(
    worker: WorkerView, settings: Rollout, *, reason: str
) -> Fence | Quarantine:
    """Takes a worker out of service after its requests have ended, if it generates now. Requests that
    a pause holds cannot end; a fence with a drain timeout would be refused.
    """
    generates = worker.standing is Standing.OPEN and not worker.held_seconds
    if generates and not worker.ignores_fences:
        return fence_after_drain(worker, settings, reason=reason)
    return take_out_of_service(worker, reason=reason)


def canary_prompts(
    worker: WorkerView, settings: Rollout, *, baseline: Checkpoint, reason: str
) -> CanaryPrompts:
    """Asks a worker to run the canary prompts on the weights in its engine.

    `baseline`: the weights to compare them with.
    """
    return CanaryPrompts(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=str(worker.version),
        run_id=worker.state.run_id if worker.state else None,
        prompts=settings.canary.prompts or DEFAULT_PROMPTS,
        max_tokens=settings.canary.max_tokens,
        compare_with=baseline.version,
        compare_with_run_id=baseline.run_id,
        compare_with_digest=file_digest(baseline.digest),
        timeout_seconds=settings.timeouts.load_seconds,
    )


def put_lora(
    worker: WorkerView,
    name: str,
    goal: Checkpoint,
    settings: Rollout,
    *,
    reason: str,
    kind: type[PutLora | StageLora] = PutLora,
) -> PutLora | StageLora:
    """Asks a worker to serve the goal under an adapter's name. `kind`: `StageLora` only stages it."""
    return kind(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=goal.version,
        run_id=goal.run_id,
        adapter=name,
        source=goal.source,
        digest=goal.digest,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def compare(
    worker: WorkerView, goal: Checkpoint, settings: Rollout, *, adapter: str = ""
) -> WorkerCall:
    """Asks a worker to compare the files of the goal, which it serves, with those that it has read."""
    reason = "the fleet has served this version before"
    files = replace(goal, digest=None)  # with a digest the worker would read no files
    if not adapter:
        return stage(worker, files, settings, reason=reason, kind=CompareFiles)
    return put_lora(worker, adapter, files, settings, reason=reason, kind=CompareLora)


def remove_lora(worker: WorkerView, name: str, *, reason: str) -> RemoveLora:
    """Asks a worker to stop serving an adapter."""
    return RemoveLora(pod_uid=worker.pod.uid, pod_name=worker.pod.name, reason=reason, adapter=name)


def needs_renewal(worker: WorkerView) -> bool:
    """Whether a held worker's pause ends soon and must be renewed.

    Also while the worker loads: the lease does not cut the load, but the latch closes if the lease has
    ended when the load ends. Not during an apply, which resumes by itself: a renewal that arrives
    after its end would be a new pause.
    """
    state = worker.state
    return (
        worker.standing is Standing.HELD
        and state is not None
        and state.pause is not None
        and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS
        and not worker.is_doing("apply")
    )
