"""The words of conditions: their types and reasons, and what each asks for.

This is the one table of them. `make generate` writes from it docs/reference/conditions.md and what to do in
docs/reference/troubleshooting.md, and `rlfleet explain` shows it. Texts are Markdown, with links as that page
has them.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Self

from rlfleet_resources.base import Word


class Severity(Enum):
    """The state of an object with a reason. The worst use of the reason counts."""

    FINE = "nothing to do"
    STARTS = "workers are missing, and on their way"
    WAITS = "waits, and no worker is at fault"
    WARNS = "asks for a look, and never stalls the object"
    STALLS = "the object may be `Stalled`"
    REFUSES = "the object may be `Stalled`, since the version itself is refused"


class ConditionType(StrEnum):
    """The subject of a condition. Its value is followed by the meaning."""

    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> Self:
        """A type of this release."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.meaning = meaning
        return made

    READY = ("Ready", "This generation of the object is fully in effect.")
    AVAILABLE = (
        "Available",
        "Fleet: enough workers serve the applied version. Those that pause count for as long as one rollout may hold them.",
    )
    PROGRESSING = ("Progressing", "Work is under way and within its deadline.")
    STALLED = (
        "Stalled",
        "Attention is needed: the cause does not pass by itself in time. Present only while true.",
    )
    STALE = (
        "Stale",
        "Fleet: workers serve weights that are further behind the desired version than `spec.staleness` permits. Present only while true.",
    )
    UPDATE_AVAILABLE = (
        "UpdateAvailable",
        "Fleet: the operator would create its workers differently now, and leaves them as they are. Present only while true.",
    )
    WEIGHTS_UNCHANGED = (
        "WeightsUnchanged",
        "WeightVersion: a warning. The version has the files of an earlier one, or its load has changed no parameter of the model. It serves all the same. Present only while true.",
    )
    REMARKS = (
        "Remarks",
        "WeightVersion: what of the files of the served version workers ignore, or cast. The version serves. Present only while true.",
    )
    ROUTER_AVAILABLE = (
        "RouterAvailable",
        "Fleet: the router takes requests. Present only with `spec.router`.",
    )


class _Reason(Word):
    """A reason. Its value is followed by the severity, the meaning, and what to do in sentences.

    A word of another release is a reason without a meaning: an older client must see that an object is stalled.
    """

    severity: Severity
    meaning: str
    advice: tuple[str, ...]

    def __new__(
        cls, word: str, severity: Severity = Severity.STALLS, meaning: str = "", *advice: str
    ) -> Self:
        """A reason of this release."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.severity, made.meaning, made.advice = severity, meaning, advice
        return made

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        made = super()._missing_(value)
        if made is not None:
            made.severity, made.meaning, made.advice = Severity.STALLS, "", ()
        return made

    @property
    def anchor(self) -> str:
        """Its section in docs/reference/troubleshooting.md; empty for one that asks for nothing."""
        return self.lower() if self.advice else ""


class ConditionReason(_Reason):
    """Why a condition has its status."""

    ALL_WORKERS_SERVING = (
        "AllWorkersServing",
        Severity.FINE,
        "Every desired worker serves the desired version.",
    )
    ROLLING_OUT = ("RollingOut", Severity.FINE, "Workers are being updated to the desired version.")
    WAITING_FOR_WORKERS = (
        "WaitingForWorkers",
        Severity.STARTS,
        "Workers are missing, starting or joining, or clients cannot reach them yet.",
        "Wait.",
        "If it lasts, look at the pods' events: GPUs may be short, or a volume is not bound.",
        "After `spec.progressDeadlineSeconds` the reason becomes [WorkersFailing](#workersfailing).",
    )
    NODE_LOST = (
        "NodeLost",
        Severity.WAITS,
        "The node of a worker does not report to the cluster.",
        "If the node is gone for good, delete it: `kubectl delete node NODE`, with the name in the message.",
        "The operator then makes a worker on another node.",
        "Otherwise look at the kubelet, the power and the network of the node: when it reports again, its pods are ready again.",
        "After a minute Kubernetes evicts the pods, and the reason becomes [WorkersFailing](#workersfailing).",
    )
    WAITING_FOR_QUOTA = (
        "WaitingForQuota",
        Severity.STARTS,
        "Pods are behind a scheduling gate, such as that of a job queue that has no quota for them yet.",
        "Wait for the queue, raise its quota, or let the fleet ask for fewer workers.",
        "The operator never removes a gate.",
    )
    WAITING_FOR_NODE = (
        "WaitingForNode",
        Severity.STARTS,
        "No node takes the pods yet, for example because GPUs are short.",
        "Wait for a node that is on its way.",
        "Otherwise add nodes, or let a worker ask for less.",
        "After `spec.progressDeadlineSeconds` the reason becomes [WorkersFailing](#workersfailing).",
    )
    WAITING_FOR_VOLUME = (
        "WaitingForVolume",
        Severity.STARTS,
        "Pods wait for their volumes or their network.",
        "Wait.",
        "If it lasts, see whether the Secrets, ConfigMaps and claims of the fleet exist: `rlfleet doctor -n NAMESPACE`.",
    )
    WAITING_FOR_IMAGE = (
        "WaitingForImage",
        Severity.STARTS,
        "Nodes pull the image of the workers.",
        "Wait.",
        "If the pull fails, correct `spec.engine.image` or `spec.pod.imagePullSecrets`.",
        "A DaemonSet with the image has it on the nodes before.",
    )
    WAITING_FOR_ENGINE = (
        "WaitingForEngine",
        Severity.STARTS,
        "Workers run, and their engines start: they load the model and compile it.",
        "Wait.",
        "The message has the restarts. After a second end before a pod was ready, the reason becomes [WorkersFailing](#workersfailing).",
    )
    WAITING_FOR_CHECKPOINT = (
        "WaitingForCheckpoint",
        Severity.WAITS,
        "The directory of the version does not exist yet. Workers look for it every few seconds, and the fleet stays on the applied version.",
        "Nothing, if the trainer still writes.",
        "If the names show another place, publish the path as the workers see it.",
        "If it takes longer than `rollout.timeouts.checkpointSeconds`, the reason becomes [SourceNotFound](#sourcenotfound).",
    )
    NO_WORKERS = (
        "NoWorkers",
        Severity.WAITS,
        "The fleet has no workers, so it is not Ready.",
        "Set `spec.replicas` to more than the number of canaries.",
    )
    WEIGHTS_TOO_OLD = (
        "WeightsTooOld",
        Severity.WARNS,
        "Workers serve weights that are further behind the desired version than `spec.staleness` permits.",
        "See why the desired version is not applied: `rlfleet explain NAME`.",
        "If rollouts are only slower than the trainer publishes, publish less often or raise the limit.",
    )
    REQUESTS_REFUSED = (
        "RequestsRefused",
        Severity.WARNS,
        "Workers answer 429 to new requests, since their weights are further behind the desired version than `spec.staleness` permits.",
        "See why the desired version is not applied: `rlfleet explain NAME`.",
        "With `spec.staleness.action: Report` the workers serve these weights again.",
    )
    DESIRED_UNHEARD = (
        "DesiredUnheard",
        Severity.WARNS,
        "Workers do not hear which version is desired, since the operator makes no decision about the fleet or may not call them. They answer 429 to new requests from `spec.staleness.maxLagSeconds` after the last time on.",
        "`Stalled` names the cause: repair that.",
        "With `spec.staleness.action: Report` the workers serve these weights again, once the operator can call them.",
    )
    NEW_TEMPLATE = (
        "NewTemplate",
        Severity.WARNS,
        "This operator creates pods differently from the one that recorded the fleet's template.",
        "When it suits you, set `spec.update.restartedAt` to the present time ([how](../how-to/update-and-drain.md)).",
    )
    UPDATE_HELD = (
        "UpdateHeld",
        Severity.STALLS,
        "Workers have an older template of the spec, and `update.paused` or `OnDelete` keeps them.",
        "Set `update.paused` to false, or delete pods one by one.",
    )
    MINIMUM_SERVING = (
        "MinimumServing",
        Severity.FINE,
        "At least replicas - maxUnavailable workers serve.",
    )
    BELOW_MINIMUM = (
        "BelowMinimum",
        Severity.WARNS,
        "Fewer than replicas - maxUnavailable workers serve.",
        "`kubectl -n NAMESPACE get pods -l rlfleet.dev/fleet=FLEET`, then look at the ones that are not ready.",
    )
    COMPARING = (
        "Comparing",
        Severity.FINE,
        "All workers serve the version of a new WeightVersion already. One of them compares its files with the weights that it serves.",
    )
    JUDGING = (
        "Judging",
        Severity.FINE,
        "The canary has the weights and is compared with the applied version.",
    )
    STAGING = (
        "Staging",
        Severity.FINE,
        "Workers check the new weights and read them into memory, while they serve.",
    )
    PAUSING = ("Pausing", Severity.FINE, "Workers stop generating, as `rollout.pause.mode` says.")
    LOADING = ("Loading", Severity.FINE, "Workers load the new weights into their engines.")
    RESUMING = (
        "Resuming",
        Severity.FINE,
        "All workers have loaded the new weights and continue their requests.",
    )
    REPLACING_WORKERS = (
        "ReplacingWorkers",
        Severity.FINE,
        "Workers of an older template are replaced, or the number of workers changes.",
    )
    UP_TO_DATE = ("UpToDate", Severity.FINE, "No work is left.")
    SUSPENDED = (
        "Suspended",
        Severity.WAITS,
        "`spec.suspend` suspends the rollout.",
        '`rlfleet resume NAME -n NAMESPACE`, or `kubectl -n NAMESPACE patch wv NAME --type=merge -p \'{"spec":{"suspend":false}}\'`.',
    )
    HALTED = (
        "Halted",
        Severity.STALLS,
        "The rollout has stopped. `Stalled` has the reason.",
        "Follow the reason of the condition `Stalled` of the WeightVersion.",
        "Then publish another version, or retry with `rlfleet retry NAME -n NAMESPACE`.",
    )
    FLEET_NOT_FOUND = (
        "FleetNotFound",
        Severity.STALLS,
        "The WeightVersion names a fleet that does not exist in its namespace.",
        "Correct `spec.fleetRef.name`, or create the fleet.",
    )
    SECOND_BASE_VERSION = (
        "SecondBaseVersion",
        Severity.STALLS,
        "Another, older WeightVersion already controls this fleet's base weights.",
        "Patch or repair the older object instead, or delete it.",
    )
    SECOND_ADAPTER_VERSION = (
        "SecondAdapterVersion",
        Severity.STALLS,
        "Another, older WeightVersion already controls this adapter.",
        "Patch or repair the older object, or choose another `spec.adapter`.",
    )
    NO_ROOM_FOR_ADAPTERS = (
        "NoRoomForAdapters",
        Severity.STALLS,
        "The fleet serves fewer adapters, `spec.adapters.max`, than WeightVersions ask for.",
        "Raise `spec.adapters.max`, which recreates the workers, or delete a WeightVersion.",
    )
    REWIND_REFUSED = (
        "RewindRefused",
        Severity.REFUSES,
        "The version is older than the last numbered one of the same run, and `spec.rollbackTo` does not name it. Weights without a run are a run of their own.",
        "To go back on purpose, set `spec.rollbackTo` to the version, or run `rlfleet rollback VERSION NAME -n NAMESPACE`.",
        "For a new run, set another `spec.runID` together with its first version.",
        "A trainer that resumes from an older step and trains on is a new run, too: its next versions have other files under the same numbers.",
    )
    VERSION_REUSED = (
        "VersionReused",
        Severity.REFUSES,
        "The version already names other files of its run. Its source, its digest or the files under its path have changed since the fleet first saw it.",
        "Publish the files under another version.",
        "If another run made them, set another `spec.runID`.",
        "If the files are the same and only the digest is new, the message has the digest to set.",
        "In an External fleet, let the trainer write its next checkpoints to another directory, or under other numbers, and update all workers.",
        "Workers that differ from most of the others leave the Service until then.",
    )
    DIGEST_REQUIRED = (
        "DigestRequired",
        Severity.REFUSES,
        "The version may have named other files of its run before, and the fleet has no room for their digest any more. So `spec.digest` must say which files the version means.",
        "Publish the files under a new version.",
        "If the message names another `spec.runID`, the fleet has lost the mark of the whole run, so set another run.",
        "To serve them under the old name, take the version back: `rlfleet undo NAME`.",
        "Then name it again with its digest: `rlfleet rollback VERSION NAME --path DIRECTORY --digest DIGEST`, which sets `spec.version`, `spec.rollbackTo` and `spec.digest` in one patch.",
        "For a version of another run, it is `rlfleet publish VERSION NAME --run RUN --path DIRECTORY --digest DIGEST`.",
        "`python -m fleet_worker manifest --digest DIR` prints the digest.",
    )
    TOO_MANY = (
        "TooMany",
        Severity.STALLS,
        "More WeightVersions name the fleet than it looks at. The newest ones have no effect.",
        "Delete the WeightVersions that the fleet does not need.",
        "Newer ones then take their places within a second.",
        "Patch `spec.version` of one WeightVersion for each step.",
    )
    EXTERNALLY_MANAGED = (
        "ExternallyManaged",
        Severity.STALLS,
        "The fleet's trainer drives the workers itself. A WeightVersion has no effect on the fleet.",
        "Delete the WeightVersion, or let the operator manage the fleet.",
    )
    VERSIONS_DIFFER = (
        "VersionsDiffer",
        Severity.STALLS,
        "Workers of an External fleet serve different versions, and no version has a majority.",
        "Let the trainer push the current version to all workers again.",
        "If the message names `join_id`, let it join a new group first, with the same [`join_id`](control.md#versions) in its call to each worker.",
        "The control root of the RL API sends one by itself.",
    )
    SOURCE_UNKNOWN = (
        "SourceUnknown",
        Severity.STALLS,
        "The served weights were sent over the network, so new workers cannot load them.",
        "Let the trainer send the weights again.",
        "New workers take part from then on.",
        "If the operator drives the fleet now, create a WeightVersion that names a directory.",
    )
    SOURCE_NOT_FOUND = (
        "SourceNotFound",
        Severity.REFUSES,
        "The source, or a file that its index names, does not exist. A missing directory of a version that no worker has held yet is `WaitingForCheckpoint` first, for `rollout.timeouts.checkpointSeconds`.",
        "List the directory as a worker sees it: `kubectl -n NAMESPACE exec POD -- ls -l DIRECTORY`.",
        "Check that trainer and workers mount the same volume, and that the trainer writes the index last.",
        "For a Hugging Face source, the repository must be in the workers' cache: they do not download.",
    )
    SOURCE_OUTSIDE_ROOTS = (
        "SourceOutsideRoots",
        Severity.REFUSES,
        "The source is not below one of the fleet's weight roots.",
        "Write checkpoints below a root, or add their place to the fleet's `spec.weights.roots`.",
    )
    SOURCE_UNREADABLE = (
        "SourceUnreadable",
        Severity.REFUSES,
        "Workers find the source but cannot read it.",
        "Do what the message says.",
        "For a directory it names the command, `chmod -R a+rX DIRECTORY`: run it as the owner of the files, with the path that you have for this directory.",
        "Or compare the owner and mode of the files with the user id of the pods (`podOverlay`).",
        "For an error of the volume, run `kubectl -n NAMESPACE exec POD -- head -c1 FILE` and read the error.",
        "If the message says that the stager was killed because the container is out of memory, raise the memory limit of the pods, or lower `spec.weights.stagingMemory`.",
        "If it died otherwise, the log of the worker has the lines before its death; report them as a defect.",
    )
    CHECKPOINT_TRUNCATED = (
        "CheckpointTruncated",
        Severity.REFUSES,
        "The length of a file differs from the length in its own header.",
        "Write into a temporary directory, flush, then rename it.",
        "Publish the next version.",
    )
    CHECKPOINT_MALFORMED = (
        "CheckpointMalformed",
        Severity.REFUSES,
        "A file does not have the format of its name.",
        "Open the file that the message names with `safetensors`, and correct how the trainer saves.",
    )
    CHECKPOINT_AMBIGUOUS = (
        "CheckpointAmbiguous",
        Severity.REFUSES,
        "The directory has two sets of weights, such as `model.safetensors` next to the shards of an index.",
        "Delete the files that are not meant.",
        "Save each version into a directory of its own.",
    )
    CHECKPOINT_NOT_FINITE = (
        "CheckpointNotFinite",
        Severity.REFUSES,
        "A tensor holds NaN or infinity.",
        "Look at the loss of that step.",
        "Publish a version from before.",
        "For numbers that are too large, start the fleet on a model in bfloat16.",
    )
    CHECKPOINT_MISMATCH = (
        "CheckpointMismatch",
        Severity.REFUSES,
        "Architecture, tensor names, shapes or types differ from the running model's.",
        "The message names the first tensors that differ.",
        "Save with the model's `save_pretrained`.",
        "Unwrap the model before.",
        "If only a key of config.json differs and does not matter, remove it.",
        "If it matters, start the fleet on a model that has it.",
        "To train `lm_head` apart, start fleet and trainer on a model with `tie_word_embeddings: false`.",
    )
    CHECKPOINT_CHANGED = (
        "CheckpointChanged",
        Severity.REFUSES,
        "Files changed between staging and loading.",
        "Never write into a published directory.",
        "Use one directory for each version.",
    )
    BASE_MISSING = (
        "BaseMissing",
        Severity.REFUSES,
        "The version is a delta, and the weights that it changes are not there.",
        "Publish the version in full.",
        "Or restore the directory of the base: workers look again every 30 s.",
        "Delete a version only when a newer full one exists.",
        "Publish a full version at least every 20.",
    )
    DELTA_MISMATCH = (
        "DeltaMismatch",
        Severity.REFUSES,
        "The version is a delta that does not give the published bytes: its base, or the delta itself, differs.",
        "Publish the version in full; the next deltas may follow it.",
        "Find out what wrote to the base: a published version never changes.",
    )
    DIGEST_MISMATCH = (
        "DigestMismatch",
        Severity.REFUSES,
        "The files are not those that `spec.digest` names.",
        "Compute the digest again after the last write (`python -m fleet_worker manifest --digest DIR`).",
        "A mismatch on one worker alone points to its node's cache or store.",
    )
    CANARY_REFUSED = (
        "CanaryRefused",
        Severity.REFUSES,
        "The canary's answers differ too much from those of the applied version, or fail a limit by themselves.",
        "Look at the training run first.",
        "If the change is intended, raise the limit in `spec.rollout.canary`, and retry with `rlfleet retry NAME -n NAMESPACE`, or with `kubectl -n NAMESPACE annotate wv NAME rlfleet.dev/retry=$(date +%s) --overwrite`.",
    )
    FAILURE_BUDGET_EXCEEDED = (
        "FailureBudgetExceeded",
        Severity.REFUSES,
        "More workers failed to load the version than `rollout.maxFailures` allows. Or failed workers are not recreated any more, since `spec.recycle` is used up.",
        "Read the causes in `status.laggards`.",
        "Repair the workers, then retry with `rlfleet retry NAME -n NAMESPACE`, or publish the next version.",
        "If the message says that workers are not recreated, delete their pods once the cause is gone: `kubectl -n NAMESPACE delete pod POD`.",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        Severity.STALLS,
        "A phase did not finish within its timeout.",
        "`status.laggards` names the workers and what they do.",
        "Raise the timeout in `spec.rollout.timeouts`, or retry with `rlfleet retry NAME -n NAMESPACE`.",
    )
    WORKERS_FAILING = (
        "WorkersFailing",
        Severity.STALLS,
        "Worker pods cannot start, do not end, or have waited for a node, their volumes or an image for longer than `spec.progressDeadlineSeconds`.",
        "`kubectl -n NAMESPACE describe pod POD` and `kubectl -n NAMESPACE logs POD --previous`.",
        "A pod on a lost node ends when the Node object is deleted.",
        "When the cause is gone, delete the failed pods to start again at once.",
    )
    CALL_WITHOUT_EFFECT = (
        "CallWithoutEffect",
        Severity.STALLS,
        "A worker answers reads, and does not follow a call: it answers with success and does nothing, keeps refusing, or gives no answer.",
        "Compare the pod's image with that of the others, and delete the pod.",
        "Until then, the operator repeats the call every 5 to 10 seconds.",
        "A worker that does not follow a fence is taken out of service by a quarantine of its pod.",
    )
    EPOCH_EXHAUSTED = (
        "EpochExhausted",
        Severity.STALLS,
        "A worker has accepted an epoch far beyond the leader's, and refuses every call of an operator.",
        "Delete the pods that the message names, and find that client.",
    )
    PROTOCOL_MISMATCH = (
        "ProtocolMismatch",
        Severity.STALLS,
        "Workers are of a release whose protocol version differs from the operator's.",
        "Use one release for both.",
        "The message says which one is older.",
    )
    SAME_FILES = (
        "SameFiles",
        Severity.WARNS,
        "The version names the same files as an earlier version of its run, by their digest.",
        "Set `spec.source.path` to a path with `{version}` together with the next version, or give each version its own path.",
        "If the trainer meant the same weights, nothing is wrong.",
    )
    NO_PARAMETER_CHANGED = (
        "NoParameterChanged",
        Severity.WARNS,
        "Every worker that could compare holds the same parameters as before the load, bit for bit.",
        "Compare two checkpoints of the trainer.",
        "A small update can vanish when it is rounded to bf16.",
    )
    IGNORED_OR_CAST = (
        "IgnoredOrCast",
        Severity.WARNS,
        "Workers ignore keys of config.json that no code reads, or end tokens and sampling defaults of the version. Or they have cast its tensors to the types of the fleet's model, or had no room for it in the staging memory.",
        "Nothing for keys and casts, if you know of them.",
        "To use other end tokens or sampling defaults, set them in each request, or start the fleet on a model that has them.",
        "For another chat template or other tokens start it on such a model.",
        "For short pauses raise `spec.weights.stagingMemory`.",
    )
    INVALID_SPEC = (
        "InvalidSpec",
        Severity.STALLS,
        "The operator cannot use the spec: `podOverlay` is not a fragment of a pod template, or a field cannot be read.",
        "The message names the field.",
        "The workers stay as they are until the spec is corrected.",
    )
    SPEC_TOO_LARGE = (
        "SpecTooLarge",
        Severity.STALLS,
        "The spec has more than 64 KiB as compact JSON, or the large specs of its namespace have together more than the operator keeps. The last readable spec stays in effect.",
        "Make the spec smaller.",
        "Put long texts of `spec.podOverlay`, `engine.env` or `engine.args` into a ConfigMap that the workers mount.",
        "When the large specs of a namespace leave room, the operator reads the refused one within half a minute.",
    )
    NAME_TAKEN = (
        "NameTaken",
        Severity.STALLS,
        "The fleet needs a name that an object of another owner has, or a pod that lost its labels. The operator does not touch that object.",
        "Delete or rename that object, or name the fleet differently.",
        "Restore the label of a pod (the message names it), or delete the pod.",
    )
    ADMIN_TOKEN_UNUSABLE = (
        "AdminTokenUnusable",
        Severity.STALLS,
        "The Secret with the token of the workers' admin ports is missing, or holds no usable token.",
        "Delete the Secret, and the operator creates it again.",
        "Pods that started with another token must be deleted, too.",
    )
    KIND_NOT_INSTALLED = (
        "KindNotInstalled",
        Severity.STALLS,
        "The spec asks for an object of another project whose CRD is not installed.",
        "Install the CRDs of the Gateway API Inference Extension ([route requests](../how-to/route-requests.md#gateways)), or remove the field.",
        "The operator tries again every 30 seconds, and nothing else of the fleet waits for it.",
    )
    WRITE_REFUSED = (
        "WriteRefused",
        Severity.STALLS,
        "The API server refuses a request of the operator, or has failed to answer it for a minute.",
        "The message has the API server's own words.",
        "Compare the rights with [what the operator needs](rbac.md).",
    )
    STATUS_UNREADABLE = (
        "StatusUnreadable",
        Severity.STALLS,
        "Another release of the operator has written parts of the status that this one cannot read. They stay as they are.",
        "Run the operator of that release, or a later one.",
    )
    PIN_UNREADABLE = (
        "PinUnreadable",
        Severity.REFUSES,
        "The version is refused, since it may name other files: the status has a pin of another release that this one cannot read.",
        "Run the operator of that release, or a later one.",
        "If the message has another version as a remedy, you may publish the files under one until then.",
    )
    CRD_OUTDATED = (
        "CRDOutdated",
        Severity.STALLS,
        "The CRDs of the cluster are of another release, and do not permit all that the operator writes into statuses. It writes the rest.",
        "Install the CRDs of the operator's release: `kubectl apply --server-side -f crds/`, or `helm upgrade` with `crds.enabled=true`.",
        "The operator notices it within a minute, and writes the statuses whole.",
    )
    DRIVEN_BY_ANOTHER_OPERATOR = (
        "DrivenByAnotherOperator",
        Severity.STALLS,
        "The status names another operator as the fleet's driver, and this operator cannot learn whether it lives. Possibly no operator drives the fleet.",
        "Give the releases namespaces that do not overlap (`watchNamespaces`).",
        "For `Stalled`, grant the right that the message names.",
        "If the other operator is gone, the message has the command that gives the fleet to this one.",
    )
    WRITE_WITHOUT_EFFECT = (
        "WriteWithoutEffect",
        Severity.STALLS,
        "The API server accepts a write of the operator, and an admission webhook or another controller changes the object back.",
        "Keep the other writer from the operator's objects, for example with an `objectSelector` of the webhook.",
        "Until then, the operator repeats the write every 5 seconds at most.",
        "The condition goes away some seconds after the write has lasted.",
    )
    READ_REFUSED = (
        "ReadRefused",
        Severity.STALLS,
        "The operator cannot list or watch objects that it follows, so its view may be outdated: the API server refuses it, or an answer cannot be read.",
        "Compare the rights with [what the operator needs](rbac.md).",
        "After a change of the chart's values, check `watchNamespaces`.",
        "If the message names no right, the operator's log has what it could not read.",
    )
    OBJECT_UNREAD = (
        "ObjectUnread",
        Severity.STALLS,
        "The operator leaves out an object with the fleet's labels. It has more bytes than the operator reads, or it is a pod with the labels of a worker and without the name of one.",
        "Follow the message: make the object smaller, correct its labels, or delete it.",
    )
    INTERNAL_ERROR = (
        "InternalError",
        Severity.STALLS,
        "A part of the operator failed. This is a defect of rlfleet; the traceback is in the operator's log.",
        "Report the traceback of the operator's log.",
        "Until then, undo the last change of the spec.",
    )
    ROUTER_READY = ("RouterReady", Severity.FINE, "At least one replica of the router is ready.")
    ROUTER_NOT_READY = (
        "RouterNotReady",
        Severity.WARNS,
        "No replica of the router is ready. The fleet's own Service still reaches the workers.",
        "`kubectl -n NAMESPACE describe deployment FLEET-router` and `kubectl -n NAMESPACE logs deployment/FLEET-router`.",
        "Until then clients can use the fleet's own Service.",
    )


class LaggardReason(_Reason):
    """Why a worker does not serve the desired version, where no condition has the same reason."""

    STARTING = (
        "Starting",
        Severity.WAITS,
        "The pod runs, and its engine loads the model.",
        "Wait.",
        "If it lasts, read `kubectl -n NAMESPACE logs POD`.",
    )
    JOINING = (
        "Joining",
        Severity.WAITS,
        "The worker runs behind a closed latch, and is being updated to the version that the others serve.",
        "Wait.",
        "If it lasts, read `rlfleet logs FLEET -n NAMESPACE`.",
    )
    NOT_ANSWERING = (
        "NotAnswering",
        Severity.WARNS,
        "The worker takes requests, and its admin port does not answer the operator.",
        "Look at the pod and its node: `kubectl -n NAMESPACE describe pod POD`.",
        "Check NetworkPolicies between the operator and port 8081.",
    )
    QUARANTINED = (
        "Quarantined",
        Severity.WARNS,
        "The worker did not answer when the others changed their weights, so it is out of the Service. The operator recreates its pod within `spec.recycle`.",
        "Nothing.",
        "If it stays, the message of the fleet says why the pod is not recreated.",
    )
    SOURCE_ABSENT = (
        "SourceAbsent",
        Severity.WARNS,
        "The directory of the version does not exist where the worker looks.",
        "List it as the worker sees it: `kubectl -n NAMESPACE exec POD -- ls -l DIRECTORY`.",
    )
    SOURCE_NOT_READY = (
        "SourceNotReady",
        Severity.WAITS,
        "The files of the version are still being written, or grow.",
        "Wait for the trainer, and let it write to a temporary directory and rename it.",
    )
    PEER_UNREADABLE = (
        "PeerUnreadable",
        Severity.WAITS,
        "The workers that this one was to read the version from have ended, are too slow, or sent other bytes.",
        "Wait: the operator names others, or lets the worker read the store.",
        "If it stays, the conditions of the WeightVersion name the pods and the cause (`cannot read from peers`). Renew an expired certificate, and check NetworkPolicies on the peer port.",
    )
    ENGINE_FAILED = (
        "EngineFailed",
        Severity.WARNS,
        "vLLM failed in a load. The worker reloads the last good weights once, or exits.",
        "Read its log: `rlfleet logs FLEET -n NAMESPACE`, or `kubectl -n NAMESPACE logs POD --previous` after an exit.",
    )
    NOT_AVAILABLE = (
        "NotAvailable",
        Severity.WARNS,
        "The worker lacks what the version needs, and the message names it. For a delta or a version of an object store it may be room in memory, else a kernel of the engine that takes over new weights. Nothing was loaded, and the worker serves on.",
        "For memory, raise `spec.weights.stagingMemory` and the memory limit, or publish the version in full on a volume.",
        "For a kernel, use another quantization or another kind of processor, or let workers start on the version.",
    )
    PROBE_FAILED = (
        "ProbeFailed",
        Severity.WARNS,
        "A forward pass with the new weights failed, or gave values that are not numbers.",
        "Publish a version from before, and look at the loss of that step.",
    )
