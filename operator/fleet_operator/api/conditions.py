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
MAX_CONDITIONS = 8
_LEFT_OUT = " [...] "


class ConditionType(StrEnum):
    """The subject of a condition."""

    READY = "Ready"
    """This generation of the object is fully in effect."""
    AVAILABLE = "Available"
    """Fleet: enough workers serve the applied version."""
    PROGRESSING = "Progressing"
    """Work is under way and within its deadline."""
    STALLED = "Stalled"
    """Attention is needed: the cause does not pass by itself in time. Present only while true."""
    UPDATE_AVAILABLE = "UpdateAvailable"
    """Fleet: the operator would create its workers differently now, and leaves them as they are.
    Present only while true."""
    WEIGHTS_UNCHANGED = "WeightsUnchanged"
    """WeightVersion: a warning. The version has the files of an earlier one, or its load has changed
    no parameter of the model. It serves all the same. Present only while true."""
    REMARKS = "Remarks"
    """WeightVersion: what of the files of the served version workers ignore, or cast. The version serves.
    Present only while true."""
    ROUTER_AVAILABLE = "RouterAvailable"
    """Fleet: the router takes requests. Present only with `spec.router`."""


class ConditionReason(StrEnum):
    """Why a condition has its status."""

    ALL_WORKERS_SERVING = "AllWorkersServing"
    """Every desired worker serves the desired version."""
    ROLLING_OUT = "RollingOut"
    """Workers are being updated to the desired version."""
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    """Workers are missing, starting or joining, or clients cannot reach them yet."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """Pods are behind a scheduling gate, such as that of a job queue that has no quota for them yet."""
    WAITING_FOR_NODE = "WaitingForNode"
    """No node takes the pods yet, for example because GPUs are short."""
    WAITING_FOR_VOLUME = "WaitingForVolume"
    """Pods wait for their volumes or their network."""
    WAITING_FOR_IMAGE = "WaitingForImage"
    """Nodes pull the image of the workers."""
    WAITING_FOR_ENGINE = "WaitingForEngine"
    """Workers run, and their engines start: they load the model and compile it."""
    WAITING_FOR_CHECKPOINT = "WaitingForCheckpoint"
    """The directory of the version does not exist yet. Workers look for it every few seconds, and the
    fleet stays on the applied version."""
    NO_WORKERS = "NoWorkers"
    """The fleet has no workers, so it is not Ready."""

    NEW_TEMPLATE = "NewTemplate"
    """This operator creates pods differently from the one that recorded the fleet's template."""
    UPDATE_HELD = "UpdateHeld"
    """Workers have an older template of the spec, and `update.paused` or `OnDelete` keeps them."""

    MINIMUM_SERVING = "MinimumServing"
    """At least replicas - maxUnavailable workers serve."""
    BELOW_MINIMUM = "BelowMinimum"
    """Fewer than replicas - maxUnavailable workers serve."""

    COMPARING = "Comparing"
    """All workers serve the version of a new WeightVersion already. One of them compares its files with
    the weights that it serves."""
    JUDGING = "Judging"
    """The canary has the weights and is compared with the applied version."""
    STAGING = "Staging"
    """Workers check the new weights and read them into memory, while they serve."""
    PAUSING = "Pausing"
    """Workers stop generating, as `rollout.pause.mode` says."""
    LOADING = "Loading"
    """Workers load the new weights into their engines."""
    RESUMING = "Resuming"
    """All workers have loaded the new weights and continue their requests."""
    REPLACING_WORKERS = "ReplacingWorkers"
    """Workers of an older template are replaced, or the number of workers changes."""
    UP_TO_DATE = "UpToDate"
    """No work is left."""
    SUSPENDED = "Suspended"
    """`spec.suspend` suspends the rollout."""
    HALTED = "Halted"
    """The rollout has stopped. `Stalled` has the reason."""

    FLEET_NOT_FOUND = "FleetNotFound"
    """The WeightVersion names a fleet that does not exist in its namespace."""
    SECOND_BASE_VERSION = "SecondBaseVersion"
    """Another, older WeightVersion already controls this fleet's base weights."""
    SECOND_ADAPTER_VERSION = "SecondAdapterVersion"
    """Another, older WeightVersion already controls this adapter."""
    NO_ROOM_FOR_ADAPTERS = "NoRoomForAdapters"
    """The fleet serves fewer adapters, `spec.adapters.max`, than WeightVersions ask for."""
    REWIND_REFUSED = "RewindRefused"
    """The version is older than the last numbered one of the same run, and `spec.rollbackTo` does not
    name it. Weights without a run are a run of their own."""
    VERSION_REUSED = "VersionReused"
    """The version already names other files of its run. Its source, its digest or the files under its
    path have changed since the fleet first saw it."""
    DIGEST_REQUIRED = "DigestRequired"
    """The version may have named other files of its run before, and the fleet has no room for their
    digest any more. So `spec.digest` must say which files the version means."""
    TOO_MANY = "TooMany"
    """More WeightVersions name the fleet than it looks at. The newest ones have no effect."""
    EXTERNALLY_MANAGED = "ExternallyManaged"
    """The fleet's trainer drives the workers itself. A WeightVersion has no effect on the fleet."""
    VERSIONS_DIFFER = "VersionsDiffer"
    """Workers of an External fleet serve different versions, and no version has a majority."""
    SOURCE_UNKNOWN = "SourceUnknown"
    """The served weights were sent over the network, so new workers cannot load them."""
    SOURCE_NOT_FOUND = "SourceNotFound"
    """The source, or a file that its index names, does not exist. A missing directory of a version that
    no worker has held yet is `WaitingForCheckpoint` first, for
    `rollout.timeouts.checkpointSeconds`."""
    SOURCE_OUTSIDE_ROOTS = "SourceOutsideRoots"
    """The source is not below one of the fleet's weight roots."""
    SOURCE_UNREADABLE = "SourceUnreadable"
    """Workers find the source but cannot read it."""
    CHECKPOINT_TRUNCATED = "CheckpointTruncated"
    """The length of a file differs from the length in its own header."""
    CHECKPOINT_MALFORMED = "CheckpointMalformed"
    """A file does not have the format of its name."""
    CHECKPOINT_AMBIGUOUS = "CheckpointAmbiguous"
    """The directory has two sets of weights, such as `model.safetensors` next to the shards of an index."""
    CHECKPOINT_NOT_FINITE = "CheckpointNotFinite"
    """A tensor holds NaN or infinity."""
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    """Architecture, tensor names, shapes or types differ from the running model's."""
    CHECKPOINT_CHANGED = "CheckpointChanged"
    """Files changed between staging and loading."""
    BASE_MISSING = "BaseMissing"
    """The version is a delta, and the weights that it changes are not there."""
    DELTA_MISMATCH = "DeltaMismatch"
    """The version is a delta that does not give the published bytes: its base, or the delta itself, differs."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The files are not those that `spec.digest` names."""
    CANARY_REFUSED = "CanaryRefused"
    """The canary's answers differ too much from those of the applied version, or fail a limit by
    themselves."""
    FAILURE_BUDGET_EXCEEDED = "FailureBudgetExceeded"
    """More workers failed to load the version than `rollout.maxFailures` allows. Or failed workers are not
    recreated any more, since `spec.recycle` is used up."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """A phase did not finish within its timeout."""
    WORKERS_FAILING = "WorkersFailing"
    """Worker pods cannot start, do not end, or have waited for a node, their volumes or an image for
    longer than `spec.progressDeadlineSeconds`."""
    CALL_WITHOUT_EFFECT = "CallWithoutEffect"
    """A worker answers reads, and does not follow a call: it answers with success and does nothing, keeps
    refusing, or gives no answer."""
    EPOCH_EXHAUSTED = "EpochExhausted"
    """A worker has accepted an epoch far beyond the leader's, and refuses every call of an
    operator."""
    PROTOCOL_MISMATCH = "ProtocolMismatch"
    """Workers are of a release whose protocol version differs from the operator's."""
    SAME_FILES = "SameFiles"
    """The version names the same files as an earlier version of its run, by their digest."""
    NO_PARAMETER_CHANGED = "NoParameterChanged"
    """Every worker that could compare holds the same parameters as before the load, bit for bit."""
    IGNORED_OR_CAST = "IgnoredOrCast"
    """Workers ignore keys of config.json that no code reads, or end tokens and sampling defaults of the
    version. Or they have cast its tensors to the types of the fleet's model."""
    INVALID_SPEC = "InvalidSpec"
    """The operator cannot use the spec: `podOverlay` is not a fragment of a pod template, or a field
    cannot be read."""
    SPEC_TOO_LARGE = "SpecTooLarge"
    """The spec has more than 64 KiB as compact JSON, or the large specs of its namespace have together more
    than the operator keeps. The last readable spec stays in effect."""
    NAME_TAKEN = "NameTaken"
    """The fleet needs a name that an object of another owner has, or a pod that lost its labels. The
    operator does not touch that object."""
    ADMIN_TOKEN_UNUSABLE = "AdminTokenUnusable"  # noqa: S105 - a reason
    """The Secret with the token of the workers' admin ports is missing, or holds no usable token."""
    KIND_NOT_INSTALLED = "KindNotInstalled"
    """The spec asks for an object of another project whose CRD is not installed."""
    WRITE_REFUSED = "WriteRefused"
    """The API server refuses a request of the operator, or has failed to answer it for a minute."""
    STATUS_UNREADABLE = "StatusUnreadable"
    """Another release of the operator has written parts of the status that this one cannot read. They stay as
    they are."""
    PIN_UNREADABLE = "PinUnreadable"
    """The version is refused, since it may name other files: the status has a pin of another release that this
    one cannot read."""
    CRD_OUTDATED = "CRDOutdated"
    """The CRDs of the cluster are of another release, and do not permit all that the operator writes into
    statuses. It writes the rest."""
    DRIVEN_BY_ANOTHER_OPERATOR = "DrivenByAnotherOperator"
    """The status names another operator as the fleet's driver, and this operator cannot learn whether it
    lives. Possibly no operator drives the fleet."""
    WRITE_WITHOUT_EFFECT = "WriteWithoutEffect"
    """The API server accepts a write of the operator, and an admission webhook or another controller
    changes the object back."""
    READ_REFUSED = "ReadRefused"
    """The operator cannot list or watch objects that it follows, so its view may be outdated: the API server
    refuses it, or an answer cannot be read."""
    OBJECT_UNREAD = "ObjectUnread"
    """An object of the fleet, such as a pod, has more bytes than the operator reads. Its large parts are
    not known."""
    INTERNAL_ERROR = "InternalError"
    """A part of the operator failed. This is a defect of rlfleet; the traceback is in the operator's
    log."""

    ROUTER_READY = "RouterReady"
    """At least one replica of the router is ready."""
    ROUTER_NOT_READY = "RouterNotReady"
    """No replica of the router is ready. The fleet's own Service still reaches the workers."""


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


def shortened(message: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """The message, without its middle if it has more than `most` characters: its end is the remedy.

    `most`: at least 20.
    """
    if len(message) <= most:
        return message
    kept = most - len(_LEFT_OUT)
    return message[: kept - kept // 2] + _LEFT_OUT + message[-(kept // 2) :]


def new_condition(
    previous: Iterable[Condition],
    condition_type: ConditionType,
    *,
    is_true: bool,
    reason: ConditionReason,
    message: str,
    generation: int,
    now: datetime,
) -> Condition:
    """A condition that keeps its transition time unless its status flips."""
    status: Literal["True", "False"] = "True" if is_true else "False"
    before = condition_of(previous, condition_type)
    kept = before is not None and before.status == status
    message = shortened(message)
    if (
        before is not None
        and kept
        and before.reason is reason
        and before.message == message
        and before.observed_generation == generation
    ):
        return before  # most conditions do not change: this one needs no second validation
    return Condition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and kept else now,
    )
