"""Condition types and reasons, and the one way to set a condition.

A reason is a constant with one sentence that says in which situation it is used. Messages name
pods and numbers and say what to do. `lastTransitionTime` moves only when the status flips.
Source: Kubernetes API conventions, "Typical status properties".
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

from fleet_operator.api.base import Resource, Timestamp

MAX_MESSAGE_CHARACTERS = 1024


class ConditionType(StrEnum):
    """What a condition speaks of."""

    READY = "Ready"
    """This generation of the object is fully in effect."""
    AVAILABLE = "Available"
    """Fleet: enough workers serve the applied version."""
    PROGRESSING = "Progressing"
    """Work is under way and inside its deadline."""
    STALLED = "Stalled"
    """Attention is needed: nothing here passes by itself in time. Present only while true."""
    UPDATE_AVAILABLE = "UpdateAvailable"
    """Fleet: its workers would be made differently today, and stay as they are. Present only while
    true."""
    WEIGHTS_UNCHANGED = "WeightsUnchanged"
    """WeightVersion: a warning, the version serves: its load has changed no parameter of the model.
    Present only while true."""


class ConditionReason(StrEnum):
    """Why a condition has its status."""

    ALL_WORKERS_SERVING = "AllWorkersServing"
    """Every wanted worker serves the desired version."""
    ROLLING_OUT = "RollingOut"
    """Workers are being brought to the desired version."""
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    """Workers are missing, starting or joining, or clients do not reach them yet."""
    WAITING_FOR_CHECKPOINT = "WaitingForCheckpoint"
    """The directory of the version does not exist yet. It is looked for every few seconds, and what is
    applied keeps serving."""
    NO_WORKERS = "NoWorkers"
    """The fleet has no workers at all; success is never claimed for zero workers."""

    NEW_TEMPLATE = "NewTemplate"
    """This operator makes pods differently than the one that recorded the fleet's template."""
    UPDATE_HELD = "UpdateHeld"
    """Workers have an older template of the spec, and `update.paused` or `OnDelete` keeps them."""

    MINIMUM_SERVING = "MinimumServing"
    """At least replicas - maxUnavailable workers serve."""
    BELOW_MINIMUM = "BelowMinimum"
    """Fewer than replicas - maxUnavailable workers serve."""

    JUDGING = "Judging"
    """The canary has the weights and is compared with the version before."""
    STAGING = "Staging"
    """Workers check the new weights and bring them into memory, while serving."""
    PAUSING = "Pausing"
    """Workers stop generating; requests are held."""
    LOADING = "Loading"
    """The new weights go into the engines."""
    RESUMING = "Resuming"
    """All workers hold the new weights and open again."""
    REPLACING_WORKERS = "ReplacingWorkers"
    """Workers of an older template are replaced, or the number of workers changes."""
    UP_TO_DATE = "UpToDate"
    """Nothing is left to do."""
    SUSPENDED = "Suspended"
    """`spec.suspend` holds the rollout back."""
    HALTED = "Halted"
    """The rollout was stopped; the reason stands in Stalled."""

    FLEET_NOT_FOUND = "FleetNotFound"
    """The WeightVersion names a fleet that does not exist in its namespace."""
    SECOND_BASE_VERSION = "SecondBaseVersion"
    """Another, older WeightVersion already steers this fleet's base weights."""
    SECOND_ADAPTER_VERSION = "SecondAdapterVersion"
    """Another, older WeightVersion already steers this adapter."""
    NO_ROOM_FOR_ADAPTERS = "NoRoomForAdapters"
    """The fleet serves fewer adapters, `spec.adapters.max`, than WeightVersions ask for."""
    REWIND_REFUSED = "RewindRefused"
    """The version is older than the one that this run has applied, and
    `spec.rollbackTo` does not name it."""
    VERSION_REUSED = "VersionReused"
    """The version stands for other files of its run already: its source, its digest or the files
    under its path have changed since the fleet first saw it."""
    EXTERNALLY_MANAGED = "ExternallyManaged"
    """The fleet's trainer drives the workers itself; a WeightVersion has no effect on it."""
    VERSIONS_DIFFER = "VersionsDiffer"
    """Workers of an externally managed fleet differ, and none of the versions has a majority."""
    SOURCE_UNKNOWN = "SourceUnknown"
    """The weights that the fleet serves came from no directory: newcomers cannot be brought to them."""
    SOURCE_NOT_FOUND = "SourceNotFound"
    """The source, or a file that its index names, does not exist. For a version that no worker has
    held yet, a directory that does not exist is `WaitingForCheckpoint` for as long as
    `rollout.timeouts.checkpointSeconds`."""
    SOURCE_OUTSIDE_ROOTS = "SourceOutsideRoots"
    """The source does not lie below one of the fleet's weight roots."""
    SOURCE_UNREADABLE = "SourceUnreadable"
    """Workers find the source but cannot read it."""
    CHECKPOINT_TRUNCATED = "CheckpointTruncated"
    """A file is shorter or longer than its own header says."""
    CHECKPOINT_MALFORMED = "CheckpointMalformed"
    """A file is not what its name says."""
    CHECKPOINT_NOT_FINITE = "CheckpointNotFinite"
    """A tensor holds NaN or infinity."""
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    """Architecture, tensor names, shapes or types differ from the running model's."""
    CHECKPOINT_CHANGED = "CheckpointChanged"
    """Files changed between staging and loading."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The files are not those that `spec.digest` names."""
    CANARY_REFUSED = "CanaryRefused"
    """The canary's answers differ too much from the version before, or are no good."""
    FAILURE_BUDGET_EXCEEDED = "FailureBudgetExceeded"
    """More workers failed to take the version than maxFailures allows."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """A phase did not finish within its timeout."""
    WORKERS_FAILING = "WorkersFailing"
    """Worker pods cannot be started, have waited for a node, their volumes or an image for
    longer than `spec.progressDeadlineSeconds`, or do not end."""
    EPOCH_EXHAUSTED = "EpochExhausted"
    """A worker obeys an epoch of the highest term there is; no call of an operator reaches it."""
    PROTOCOL_MISMATCH = "ProtocolMismatch"
    """Workers are of a release that speaks another version of the protocol than the operator."""
    NO_PARAMETER_CHANGED = "NoParameterChanged"
    """Every worker that could compare holds the same parameters as under the version before, bit for bit."""
    INVALID_SPEC = "InvalidSpec"
    """The spec cannot be used: `podOverlay` is no fragment of a pod template, or a field cannot be read."""
    NAME_TAKEN = "NameTaken"
    """An object that the fleet needs exists and belongs to something else; it is left as it is."""
    ADMIN_TOKEN_UNUSABLE = "AdminTokenUnusable"  # noqa: S105 - a reason
    """The Secret with the token of the workers' admin ports is missing, or holds no usable token."""
    WRITE_REFUSED = "WriteRefused"
    """The API server refuses a request of the operator, or has failed it for a minute."""
    READ_REFUSED = "ReadRefused"
    """The API server refuses to list or watch what the operator follows: what it knows may be outdated."""
    INTERNAL_ERROR = "InternalError"
    """A part of the operator failed: a defect of rlfleet, whose traceback is in the operator's log."""


class Condition(Resource):
    """One entry of `status.conditions`."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: ConditionReason
    message: str
    observed_generation: int
    last_transition_time: Timestamp


def condition_of(
    conditions: Iterable[Condition], condition_type: ConditionType
) -> Condition | None:
    """The condition of that type, if it is there."""
    for condition in conditions:
        if condition.type is condition_type:
            return condition
    return None


def new_condition(
    previous: Iterable[Condition],
    condition_type: ConditionType,
    *,
    holds: bool,
    reason: ConditionReason,
    message: str,
    generation: int,
    now: datetime,
) -> Condition:
    """A condition that keeps its transition time unless its status flips."""
    status: Literal["True", "False"] = "True" if holds else "False"
    before = condition_of(previous, condition_type)
    kept = before is not None and before.status == status
    message = message[:MAX_MESSAGE_CHARACTERS]
    if (
        before is not None
        and kept
        and before.reason is reason
        and before.message == message
        and before.observed_generation == generation
    ):
        return before  # most conditions say the same as before: none is validated twice
    return Condition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and kept else now,
    )
