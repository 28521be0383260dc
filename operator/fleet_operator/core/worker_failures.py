"""Reads from the failures that a worker reports why it cannot take weights, and when to call it again.

A call to take weights that was answered with success, and had no effect, counts like a refusal.
"""

from __future__ import annotations

import math

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import Named
from fleet_operator.core.worker_view import WorkerView
from fleet_worker.protocol import Failure, Reason

RETRY_SECONDS = 10.0
"""Wait after a refusal before the next attempt: a file may be missing only for a moment."""
LONGEST_RETRY_SECONDS = 300.0
"""Upper limit for the wait that a worker asks for."""
WAIT_SECONDS = 1.0
"""Wait after a temporary failure before the next attempt."""
NO_EFFECT = "CallWithoutEffect"
"""The reason of a failure that no worker reports: a call had no effect."""
ROUNDING_SECONDS = 0.001
"""An answer belongs to an attempt that began at the same moment."""
_TEMPORARY = frozenset({Reason.SOURCE_NOT_READY, Reason.PEER_UNREADABLE, Reason.NO_ADAPTER_SLOT})


def failure_of(
    worker: WorkerView, weights: Named, *, within_seconds: float = math.inf
) -> Failure | None:
    """Returns why this worker failed to take these weights in the last `within_seconds`, if it did.

    Temporary states do not count: a source that is still being written or does not exist yet, or an
    adapter slot that requests still use. Nor do peers without the version.
    """
    failure = last_failure(worker, weights, within_seconds=within_seconds)
    return None if failure is None or _is_temporary(failure, weights) else failure


def last_failure(
    worker: WorkerView, weights: Named, *, within_seconds: float = math.inf
) -> Failure | None:
    """Returns the last failure of this worker with these weights, if there is one in the last `within_seconds`.

    A failure with a version of another run does not count. A refusal stays known when other weights
    are refused after it.
    """
    state = worker.state
    if state is None or not worker.facts.refuses:
        return None
    known = (
        *(state.load_failure, state.stage_failure, *state.earlier_stage_failures),
        *ignored_calls(worker),
    )
    said = [f for f in known if f is not None and is_about(f, weights)]
    last = min(said, key=lambda f: f.age_seconds, default=None)
    return last if last is not None and _is_within(worker, last, within_seconds) else None


def has_failed_to_load(worker: WorkerView, weights: Named, *, within_seconds: float) -> bool:
    """Whether the last load of this worker was one of these weights, and failed. Later refusals of files hide that
    from `failure_of`.
    """
    failure = worker.state.load_failure if worker.state is not None else None
    if failure is None or not is_about(failure, weights) or worker.has_loaded(weights):
        return False
    return _is_within(worker, failure, within_seconds)


def _is_within(worker: WorkerView, failure: Failure, seconds: float) -> bool:
    return failure.age_seconds + worker.state_age_seconds < seconds + ROUNDING_SECONDS


def ignored_calls(worker: WorkerView) -> list[Failure]:
    """Returns the calls to take base weights that this worker answered with success and did not follow."""
    return [
        Failure(
            version=u.work.version,
            run_id=u.work.run_id,
            reason=NO_EFFECT,
            message=f"it answers {u.work.kind} with success, and {u.why}",
            age_seconds=max(u.seconds - worker.state_age_seconds, 0.0),
        )
        for u in worker.unheeded
        if u.is_failure and u.work.adapter is None
    ]


def is_about(failure: Failure, weights: Named) -> bool:
    """Whether a failure is about these weights."""
    return failure.version == weights.version and failure.run_id == weights.run_id


def pending_failure(worker: WorkerView, weights: Named) -> Failure | None:
    """Returns the temporary failure that this worker waits out before it can take these weights."""
    said = last_failure(worker, weights)
    return said if said is not None and _is_temporary(said, weights) else None


def absence(worker: WorkerView, weights: Named) -> Failure | None:
    """Returns the failure of a worker that waits for a directory that does not exist yet."""
    said = pending_failure(worker, weights)
    return said if said is not None and said.reason is Reason.SOURCE_ABSENT else None


def _is_temporary(failure: Failure, weights: Named) -> bool:
    awaited = isinstance(weights, Checkpoint) and weights.awaited
    return failure.reason in _TEMPORARY or (awaited and failure.reason is Reason.SOURCE_ABSENT)


def failed_lately(worker: WorkerView, weights: Named, *, within_seconds: float = math.inf) -> bool:
    """Whether a new attempt must wait because of a failure in the last `within_seconds`."""
    failure = last_failure(worker, weights, within_seconds=within_seconds)
    return failure is not None and retry_in_seconds(worker, failure) > 0


def retry_in_seconds(worker: WorkerView, failure: Failure) -> float:
    """Returns the seconds until the next attempt; negative when it is due."""
    pause_seconds = WAIT_SECONDS if failure.reason in _TEMPORARY else RETRY_SECONDS
    if failure.retry_after_seconds is not None:
        # A worker may delay only its own retries, and only up to a limit.
        pause_seconds = min(max(failure.retry_after_seconds, WAIT_SECONDS), LONGEST_RETRY_SECONDS)
    return pause_seconds - failure.age_seconds - worker.state_age_seconds
