"""Makes the calls to workers: every planner uses these, so that reasons and limits are the same.

Units: seconds everywhere.
"""

from __future__ import annotations

import math

from fleet_operator.api.fleet import Rollout
from fleet_operator.core.actions import (
    Admit,
    Apply,
    Fence,
    Load,
    Pause,
    Probe,
    PutAdapter,
    Quarantine,
    RemoveAdapter,
    Resume,
    Stage,
)
from fleet_operator.core.identity import Named, WeightsId
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_worker.protocol import Failure, PauseMode, Reason

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
"""What a canary is asked when the fleet names no prompts of its own."""
PAUSE_MODES = {"Keep": PauseMode.KEEP, "Wait": PauseMode.WAIT, "Abort": PauseMode.ABORT}
"""The words of `rollout.pause.mode` in those of vLLM."""
LEASE_SECONDS = 30.0
"""A pause ends by itself this long after the operator was last heard of; longer than it takes a
standby to take over (20 s)."""
RENEW_BELOW_SECONDS = 15.0
RETRY_SECONDS = 10.0
"""A refusal is asked about again after this long: a file may have been missing only for now."""
LONGEST_RETRY_SECONDS = 300.0
"""A worker that asks for more time than this before a retry gets this much."""
WAIT_SECONDS = 1.0
"""What passes by itself is looked at again after this long."""
_UNKNOWN = WeightsId("None")
"""Asked to open on what is in its engine, a worker that has nothing to trust there refuses."""
_NOT_YET = frozenset({Reason.SOURCE_NOT_READY, Reason.NO_ADAPTER_SLOT})


def stage(worker: WorkerView, target: Target, settings: Rollout, *, reason: str) -> Stage:
    """Ask a worker to check the target and to hold its bytes."""
    return Stage(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=target.version,
        run_id=target.run_id,
        digest=target.digest,
        source=target.source,
        timeout_seconds=settings.timeouts.stage_seconds,
    )


def pause(worker: WorkerView, settings: Rollout, *, reason: str) -> Pause:
    """Ask a worker to stop generating, or to stay stopped."""
    return Pause(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        mode=PAUSE_MODES[settings.pause.mode],
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
        lease_seconds=LEASE_SECONDS,
    )


def load(worker: WorkerView, target: Target, settings: Rollout, *, reason: str) -> Load:
    """Ask a worker to put the staged target into its engine."""
    return Load(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=target.version,
        run_id=target.run_id,
        digest=target.digest,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def apply(worker: WorkerView, target: Target, settings: Rollout, *, reason: str) -> Apply:
    """Ask a worker to swap to the staged target by itself."""
    return Apply(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=target.version,
        run_id=target.run_id,
        digest=target.digest,
        mode=PAUSE_MODES[settings.pause.mode],
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
        lease_seconds=LEASE_SECONDS,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def resume(worker: WorkerView, *, reason: str) -> Resume:
    """Let a held worker generate on the weights that it reports."""
    uid, name = worker.pod.uid, worker.pod.name
    version, run_id, digest = worker.loaded or _UNKNOWN
    return Resume(
        pod_uid=uid, pod_name=name, reason=reason, version=version, run_id=run_id, digest=digest
    )


def admit(worker: WorkerView, *, reason: str) -> Admit:
    """Open a joiner's latch on the weights that it reports."""
    uid, name = worker.pod.uid, worker.pod.name
    version, run_id, digest = worker.loaded or _UNKNOWN
    return Admit(
        pod_uid=uid, pod_name=name, reason=reason, version=version, run_id=run_id, digest=digest
    )


def expel(worker: WorkerView, *, reason: str) -> Fence | Quarantine:
    """Take a worker out of service: by its own latch if it listens, else by the Service."""
    if worker.standing is Standing.UNKNOWN:
        return Quarantine(name=worker.pod.name, uid=worker.pod.uid, reason=reason)
    return close(worker, reason=reason)


def close(worker: WorkerView, *, reason: str) -> Fence:
    """Close a worker's latch at once, and end its requests."""
    return Fence(pod_uid=worker.pod.uid, pod_name=worker.pod.name, reason=reason)


def lease_remaining_seconds(worker: WorkerView) -> float:
    """Seconds until a worker's pause ends by itself; 0 if it is not paused."""
    if worker.state is None or worker.state.pause is None:
        return 0
    return worker.state.pause.lease_remaining_seconds - worker.state_age_seconds


def set_apart(worker: WorkerView, settings: Rollout, *, reason: str) -> Fence:
    """Take a healthy worker out of service: running requests may finish first."""
    return Fence(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        drain_timeout_seconds=settings.pause.drain_timeout_seconds,
    )


def probe(worker: WorkerView, settings: Rollout, *, reason: str) -> Probe:
    """Ask a worker to run the canary's prompts on what is in its engine."""
    return Probe(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=reason,
        version=str(worker.version),
        run_id=worker.state.run_id if worker.state else None,
        prompts=settings.canary.prompts or DEFAULT_PROMPTS,
        max_tokens=settings.canary.max_tokens,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def put_adapter(worker: WorkerView, name: str, target: Target, settings: Rollout) -> PutAdapter:
    """Ask a worker to serve the target under an adapter's name."""
    return PutAdapter(
        pod_uid=worker.pod.uid,
        pod_name=worker.pod.name,
        reason=f"version {target.label} of adapter {name} is wanted",
        version=target.version,
        run_id=target.run_id,
        adapter=name,
        source=target.source,
        digest=target.digest,
        timeout_seconds=settings.timeouts.load_seconds,
    )


def remove_adapter(worker: WorkerView, name: str) -> RemoveAdapter:
    """Ask a worker to serve an adapter no more."""
    reason = "no WeightVersion asks for it"
    return RemoveAdapter(
        pod_uid=worker.pod.uid, pod_name=worker.pod.name, reason=reason, adapter=name
    )


def needs_renewal(worker: WorkerView) -> bool:
    """Whether a held worker's pause would end soon. Also while it loads: the load is not cut by its
    lease, but what has loaded under a lease that is over closes its latch.
    """
    state = worker.state
    return (
        worker.standing is Standing.HELD
        and state is not None
        and state.pause is not None
        and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS
    )


def failure_of(
    worker: WorkerView, weights: Named, *, within_seconds: float = math.inf
) -> Failure | None:
    """Why this worker could not take these weights, if it could not, in the last so many seconds.

    What passes by itself is no failure: a source that is still being written or does not exist yet,
    an adapter's slot that requests still use.
    """
    failure = last_answer(worker, weights)
    if failure is None or _passes(failure, weights):
        return None
    age_seconds = failure.age_seconds + worker.state_age_seconds
    return failure if age_seconds < within_seconds else None


def last_answer(worker: WorkerView, weights: Named) -> Failure | None:
    """What this worker said last against these weights, if it took them not.

    A failure of one run's version says nothing about another run's. A refusal stays known while other
    weights are refused after it.
    """
    if worker.state is None:
        return None
    state = worker.state
    known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
    said = [f for f in known if f is not None and is_about(f, weights)]
    return min(said, key=lambda f: f.age_seconds, default=None)


def is_about(failure: Failure, weights: Named) -> bool:
    """Whether a failure speaks of these weights."""
    return failure.version == weights.version and failure.run_id in {None, weights.run_id}


def waits(worker: WorkerView, weights: Named) -> Failure | None:
    """What this worker waits for before it can take these weights, if for anything."""
    said = last_answer(worker, weights)
    return said if said is not None and _passes(said, weights) else None


def finds_nothing(worker: WorkerView, weights: Named) -> bool:
    """Whether this worker waits for a directory that does not exist yet."""
    said = waits(worker, weights)
    return said is not None and said.reason is Reason.SOURCE_ABSENT


def _passes(failure: Failure, weights: Named) -> bool:
    awaited = isinstance(weights, Target) and weights.awaited
    return failure.reason in _NOT_YET or (awaited and failure.reason is Reason.SOURCE_ABSENT)


def failed_lately(worker: WorkerView, weights: Named, *, within_seconds: float = math.inf) -> bool:
    """Whether a new attempt should wait, for what the worker said in the last so many seconds."""
    failure = last_answer(worker, weights)
    if failure is None or failure.age_seconds + worker.state_age_seconds >= within_seconds:
        return False
    return retry_in_seconds(worker, failure) > 0


def retry_in_seconds(worker: WorkerView, failure: Failure) -> float:
    """Seconds until a refusal is asked about again; negative when that time has come."""
    pause_seconds = WAIT_SECONDS if failure.reason in _NOT_YET else RETRY_SECONDS
    if failure.retry_after_seconds is not None:
        # A worker's word moves its own retries only, and not beyond what a fleet can wait for.
        pause_seconds = min(max(failure.retry_after_seconds, WAIT_SECONDS), LONGEST_RETRY_SECONDS)
    return pause_seconds - failure.age_seconds - worker.state_age_seconds
