"""The status of a WeightVersion: the rollout as the operator observes it."""

from __future__ import annotations

from typing import Literal

from rlfleet_resources.base import Message, Resource, Timestamp, Word, at_most
from rlfleet_resources.conditions import MAX_CONDITIONS, Condition
from rlfleet_resources.fleet_status import MAX_LAGGARDS, AppliedWeights, Laggard
from rlfleet_resources.source import ManifestDigest
from rlfleet_resources.status import Status

MAX_HISTORY = 10
MAX_CANARY_PODS = 100


class RolloutPhase(Word):
    """Current phase of the rollout of the desired version."""

    PENDING = "Pending"
    """No worker can load the version yet: the fleet has no worker, or the checkpoint does not exist."""
    COMPARING = "Comparing"
    """All workers serve the version already. One compares its files with the weights that it serves."""
    JUDGING = "Judging"
    """The canary has the weights, behind a closed latch, and is compared with the applied version."""
    STAGING = "Staging"
    """Workers check the weights and hold the bytes, while they serve."""
    PAUSING = "Pausing"
    """Workers stop generating."""
    LOADING = "Loading"
    """Workers load the weights into their engines."""
    RESUMING = "Resuming"
    """All workers have loaded the new weights and continue their requests."""
    APPLIED = "Applied"
    """Every worker serves the desired version."""
    SUSPENDED = "Suspended"
    """Suspended by `spec.suspend`; the applied version keeps serving."""
    HALTED = "Halted"
    """Stopped after a failure; the fleet stays on the applied version."""


class RolloutWorkers(Resource):
    """Number of workers that have reached each step."""

    total: int = 0
    staged: int = 0
    paused: int = 0
    applied: int = 0
    failed: int = 0


class RolloutTimings(Resource):
    """Durations of one rollout as the operator saw them, and what it cost.

    Fields:
        lost_worker_seconds: sum over the workers of the time for which each held its requests.
        held_requests: requests that waited when the pauses of the workers ended.
    """

    stage_seconds: float = 0
    pause_seconds: float = 0
    load_seconds: float = 0
    resume_seconds: float = 0
    total_seconds: float = 0
    max_worker_pause_seconds: float = 0
    lost_worker_seconds: float = 0
    held_requests: int = 0


class StoreReads(Resource):
    """The reads of one rollout, as the workers reported them when the version was applied.

    Fields:
        bytes: from the store, by all workers together: of a delta its files, and its base where a worker did
            not hold it.
        workers: number of workers that read the store, or had all in memory.
        peer_bytes: from other workers of the fleet: of a delta its files, or the whole result.
        peer_workers: number of workers that read from others.
        published_bytes: of the version's weight files in the store: of a delta its own; 0 if no worker has read it.
        size_bytes: of the whole weights, the same.
    """

    bytes: int = 0
    workers: int = 0
    peer_bytes: int = 0
    peer_workers: int = 0
    published_bytes: int = 0
    size_bytes: int = 0


class RolloutEffect(Resource):
    """Change of the model by the version, at the served precision, and how it was loaded, as the workers report it.

    Fields:
        version: the loaded version.
        compared_with: the version before, on most workers.
        min_changed_share / max_changed_share: smallest and largest share over the workers that could
            compare, 0 to 1; absent if none could.
        compared_workers / not_comparable_workers: workers that could compare, and could not.
        unchanged: every worker that could compare found not one bit changed.
        message: why a worker could not compare.
        in_place_workers / full_workers: workers whose load wrote only what differs, and workers that loaded all.
        why_full: why, with the worker, although the fleet asks for loads in place; empty if it does not.
    """

    version: str
    compared_with: str = ""
    min_changed_share: float | None = None
    max_changed_share: float | None = None
    compared_workers: int = 0
    not_comparable_workers: int = 0
    unchanged: bool = False
    message: Message = ""
    in_place_workers: int = 0
    full_workers: int = 0
    why_full: Message = ""


class HistoryEntry(Resource):
    """One rollout that has ended.

    Fields:
        result: `Refused` and `Superseded` versions were replaced in the spec: the first while `Stalled`
            refused them, the other ones while they were on their way.
        reason, message: why it was not applied, as the conditions said last; empty if it was.
        requested_by: the field manager that wrote the version; empty if several had.
    """

    version: str
    run_id: str | None = None
    result: Literal["Applied", "Refused", "Superseded", "Halted"]
    started_at: Timestamp
    total_seconds: float
    max_worker_pause_seconds: float = 0
    reason: str = ""
    message: Message = ""
    requested_by: str = ""


class CanaryVerdict(Resource):
    """Result of the canaries of a version. `pods`: the first `MAX_CANARY_PODS` of them."""

    version: str
    run_id: str | None = None
    digest: ManifestDigest | None = None
    passed: bool
    pods: tuple[str, ...] = ()
    finite: bool = True
    repetition: float = 0
    logprob_drift: float = 0
    kl: float = 0
    message: Message = ""


class CanaryRecord(Resource):
    """One worker that was called to read the desired version as its canary.

    Fields:
        uid: of its pod.
        called_at: when its present process got the first call.
        restarts: of its container at that call.
        deaths: how many processes before this one have ended after such a call.
    """

    pod: str
    uid: str
    called_at: Timestamp
    restarts: int = 0
    deaths: int = 0


class WeightsStatus(Status):
    """The observed state of the rollout.

    Fields:
        applied_version: what every admitted worker serves; absent while they differ.
        applied: the last weights that all workers agreed on; new workers load these.
        workers_applied: `applied/desired`, for a printer column.
        requested_by: the field manager that had written the version when its rollout began; empty if
            several had.
        retried: the retry annotation that this status is about (`names.retry_mark`).
        rollback_to: `spec.rollbackTo`, from when it permits the desired version until one is applied.
        store_reads: absent until the version is applied.
        effect: change by the last loads of the desired version; kept over operator restarts.
        started_at / phase_started_at: for users and timings. Timeouts count only the time for which
            the present leader has watched the phase.
    """

    observed_generation: int = 0
    desired_version: str | None = None
    desired_run_id: str | None = None
    applied_version: str | None = None
    applied: AppliedWeights | None = None
    phase: RolloutPhase = RolloutPhase.PENDING
    retried: str = ""
    rollback_to: str | None = None
    requested_by: str = ""
    started_at: Timestamp | None = None
    phase_started_at: Timestamp | None = None
    workers: RolloutWorkers = RolloutWorkers()
    workers_applied: str = ""
    laggards: tuple[Laggard, ...] = at_most(MAX_LAGGARDS)
    timings: RolloutTimings = RolloutTimings()
    store_reads: StoreReads | None = None
    effect: RolloutEffect | None = None
    canary: CanaryVerdict | None = None
    canaries: tuple[CanaryRecord, ...] = at_most(MAX_CANARY_PODS)
    superseded_versions: int = 0
    files_unread: bool = False
    history: tuple[HistoryEntry, ...] = at_most(MAX_HISTORY)
    conditions: tuple[Condition, ...] = at_most(MAX_CONDITIONS)

    def is_about(self, version: str, run_id: str | None) -> bool:
        """Whether this is about a rollout of this version of this run."""
        return (self.desired_version, self.desired_run_id) == (version, run_id)

    def has_reached(self, version: str, run_id: str | None) -> bool:
        """Whether all workers have agreed on this version of this run, and on no other one since then. A
        worker that joins brings the phase back.
        """
        applied = self.applied
        return applied is not None and (applied.version, applied.run_id) == (version, run_id)
