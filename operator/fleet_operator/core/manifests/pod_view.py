"""Reads the few facts of a pod that decisions need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.core.worker_view import PodView
from fleet_operator.counts import counted
from rlfleet_resources import names
from rlfleet_resources.reasons import ConditionReason

# A container that waits for one of these reasons needs attention at once.
_PROBLEMS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "InvalidImageName",
        "RunContainerError",
        "SignatureValidationFailed",
    }
)
_CRASHES = "CrashLoopBackOff"
_FORGIVEN = timedelta(minutes=10)
"""After a run of this time the kubelet forgets earlier ends. Source: pkg/kubelet/kubelet.go of Kubernetes"""
_CLAIM = "persistentvolumeclaim"
"""The scheduler names it where a claim is missing or not bound, so that no node would help."""
# The kubelet tries a pull again by itself. Source: pkg/kubelet/images/types.go of Kubernetes
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_ZONE = "topology.kubernetes.io/zone"
_GATED = "SchedulingGated"
_GATES_OPEN = "ReadinessGatesNotReady"
# Conditions of the steps of a pod's start. A wait began at the last of their transitions.
_STEPS = (
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
)
_ENDED = frozenset({"Failed", "Succeeded"})

_MAX_LAST_WORDS = 300
_MAX_REASON = 1000
_MAX_JSON = 10_000
"""Characters of a text that is parsed. It cannot be nested deeper than an object of the API server, for which the
operator raises Python's limit of recursion. A deeper one would end the process instead of raising.
"""
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """The view of one pod.

    Source: Kubernetes core/v1 Pod.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels = metadata.get("labels", {})
    _, ordinal = names.worker_of(metadata) or ("", 0)
    container = _worker_container(status)
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    return PodView(
        uid=metadata["uid"],
        name=metadata["name"],
        ordinal=ordinal,
        revision=labels.get(names.LABEL_REVISION, ""),
        ip=status.get("podIP"),
        node=spec.get("nodeName"),
        zone=labels.get(_ZONE, ""),
        phase=status.get("phase", "Pending"),
        running="running" in container.get("state", {}),
        started=bool(container.get("started")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        evicted="DisruptionTarget" in conditions and _is_evicted(conditions["DisruptionTarget"]),
        gone_by=_time(metadata.get("deletionTimestamp")),
        owner=names.controller_uid(metadata),
        restarts=container.get("restartCount", 0),
        starts_again=_starts_again(container),
        problem=_problem(status, conditions, container),
        wait=_lost_node(spec, conditions) or _wait(status, conditions, container),
        quarantine=_quarantine(metadata),
        drains_since=_drains_since(metadata),
        version=metadata.get("resourceVersion", ""),
    )


def _is_evicted(disruption: Mapping[str, Any]) -> bool:
    """Whether the pod is deleted because its node is lost.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    reason = disruption.get("reason")
    return disruption.get("status") == "True" and reason == "DeletionByTaintManager"


def _time(written: str | None) -> datetime | None:
    return datetime.fromisoformat(written) if written else None


def _worker_container(status: Mapping[str, Any]) -> dict[str, Any]:
    for container in status.get("containerStatuses", ()):
        if container["name"] == names.WORKER_CONTAINER:
            found: dict[str, Any] = container
            return found
    return {}


def _starts_again(container: Mapping[str, Any]) -> str:
    restarts = container.get("restartCount", 0)
    if not restarts or container.get("started"):
        return ""
    return "; ".join(filter(None, (f"restarted {counted(restarts, 'time')}", _last_end(container))))


def _problem(
    status: Mapping[str, Any], conditions: Mapping[str, Any], container: Mapping[str, Any]
) -> str:
    for candidate in _containers(status, container):
        waiting = candidate.get("state", {}).get("waiting", {})
        reason, last_end = waiting.get("reason"), _last_end(candidate)
        ends = reason == _CRASHES or (
            candidate is container and _keeps_ending(conditions, container)
        )
        if last_end and ends:
            return f"{_CRASHES}: {last_end}"
        if reason in _PROBLEMS:
            return _reason_and_message(waiting, "") + (f"; {last_end}" if last_end else "")
    if status.get("phase") == "Failed":
        return _reason_and_message(status, "Failed")
    return ""


def _keeps_ending(conditions: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Whether a worker has ended repeatedly and is not up again: after a short run, or after one in which its
    pod was never ready, however long it was. The kubelet says so only while it waits between two runs.
    """
    state, ended = container.get("state", {}), container.get("lastState", {}).get("terminated", {})
    if "waiting" in state or container.get("started") or container.get("restartCount", 0) < 2:
        return False
    began, end = _time(ended.get("startedAt")), _time(ended.get("finishedAt"))
    if began is None or end is None:
        return False
    # A pod that is ready in a run is not ready from its end on: the condition changes after the run's start.
    changed = _time(conditions.get("Ready", {}).get("lastTransitionTime"))
    return end - began < _FORGIVEN or (changed is not None and changed < began)


def _lost_node(spec: Mapping[str, Any], conditions: Mapping[str, Any]) -> PodWait | None:
    """The wait for a node whose kubelet does not report. The kubelet itself reports both conditions alike, if no
    readiness gate is open.

    Source: MarkPodsNotReady in pkg/controller/util/node of Kubernetes, which changes the status of `Ready` only.
    """
    ready, containers = (conditions.get(kind, {}) for kind in ("Ready", "ContainersReady"))
    if (ready.get("status"), containers.get("status")) != ("False", "True"):
        return None
    if ready.get("reason") == _GATES_OPEN:
        return None
    return PodWait(
        awaited=Awaited.LOST_NODE,
        reason=ConditionReason.NODE_LOST,
        message=f"node {spec.get('nodeName')} does not report; if it is gone for good, delete the Node, and the "
        "operator makes another pod",
        since=_time(ready.get("lastTransitionTime")),
    )


def _wait(
    status: Mapping[str, Any], conditions: Mapping[str, Any], container: Mapping[str, Any]
) -> PodWait | None:
    if status.get("phase") in _ENDED:
        return None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        reason, message = scheduled.get("reason") or "Unscheduled", _message_of(scheduled)
        awaited = Awaited.VOLUMES if _CLAIM in message.lower() else Awaited.NODE
        return PodWait(
            awaited=Awaited.GATE if reason == _GATED else awaited,
            reason=reason,
            message=message,
            since=_time(scheduled.get("lastTransitionTime")),
        )
    for candidate in _containers(status, container):
        waiting = candidate.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _PULLS:
            return PodWait(
                awaited=Awaited.IMAGE,
                reason=waiting["reason"],
                message=_message_of(waiting),
                since=_last_step(status, conditions),
            )
    return _wait_for_start(status, conditions, container)


def _wait_for_start(
    status: Mapping[str, Any], conditions: Mapping[str, Any], container: Mapping[str, Any]
) -> PodWait | None:
    """The wait of a worker that the kubelet has not started yet.

    The kubelet's reason does not distinguish a normal start from one that hangs.
    """
    waiting = container.get("state", {}).get("waiting")
    if waiting is None or _problem(status, conditions, container) or _runs_init(status, conditions):
        return None
    begun = conditions.get("PodReadyToStartContainers", {}).get("status") != "False"
    return PodWait(
        awaited=Awaited.IMAGE if begun else Awaited.VOLUMES,
        reason=waiting.get("reason") or "Waiting",
        message=_message_of(waiting),
        since=_last_step(status, conditions),
    )


def _runs_init(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether an init container runs now. After `Initialized` only sidecars do."""
    if conditions.get("Initialized", {}).get("status") == "True":
        return False
    return any("running" in c.get("state", {}) for c in status.get("initContainerStatuses", ()))


def _containers(
    status: Mapping[str, Any], container: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """The statuses of all containers, the worker first."""
    others = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return (container, *others)


def _last_step(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> datetime | None:
    """The time of the last step of the pod's start; the end of an init container counts."""
    times = [_time(conditions.get(kind, {}).get("lastTransitionTime")) for kind in _STEPS]
    ended = (
        c.get("state", {}).get("terminated", {}) for c in status.get("initContainerStatuses", ())
    )
    times += [_time(e.get("finishedAt")) for e in ended]
    return max((t for t in times if t is not None), default=None)


def _message_of(found: Mapping[str, Any]) -> str:
    """The message, which repeats names that a user may have made of any length, such as that of an image."""
    return str(found.get("message") or "")[:_MAX_REASON]


def _reason_and_message(found: Mapping[str, Any], otherwise: str) -> str:
    """`reason: message`, or the part of it that there is."""
    reason, message = found.get("reason") or otherwise, _message_of(found)
    return f"{reason}: {message}" if message else reason


def _last_end(container: Mapping[str, Any]) -> str:
    ended = container.get("lastState", {}).get("terminated", {})
    if "exitCode" not in ended:
        return ""
    # The kubelet takes the last log lines if the process has written no termination message.
    last_words = [line for line in ended.get("message", "").splitlines() if line.strip()]
    said = _said(last_words[-1])[-_MAX_LAST_WORDS:] if last_words else ""
    reason = ended.get("reason") or ""
    # "Error" says no more than the exit code; of a process that was killed, its log says nothing.
    known = "" if reason == "Error" and said else reason
    why = ": ".join(filter(None, (known, said)))
    return f"it last ended with exit code {ended['exitCode']} {why}".rstrip()


def _said(line: str) -> str:
    """The message of a log line in JSON on one line. Its other fields change with each run. Another line as it is."""
    try:
        message = _parsed(line)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return line
    return " ".join(_sendable(message).split()) if isinstance(message, str) else line


def _parsed(text: str) -> Any:
    """Parse a text that a user may have written. Errors: ValueError, RecursionError."""
    if len(text) > _MAX_JSON:
        raise ValueError(f"a text of {len(text)} characters")
    return json.loads(text)


def _sendable(text: str) -> str:
    """Without what escapes of JSON can hold and UTF-8 cannot: the API server would refuse the status with it."""
    return text.encode(errors="replace").decode()


def _drains_since(metadata: Mapping[str, Any]) -> datetime | None:
    """The start of the drain; long ago if the annotation cannot be read, or is missing."""
    traffic, written = _traffic(metadata), _annotation(metadata, names.ANNOTATION_DRAIN)
    if traffic == names.TRAFFIC_ALLOWED:
        return None  # the Service selects it: the mark alone takes no client away
    if written is None:
        return _LONG_AGO if traffic == names.TRAFFIC_DRAINING else None
    try:
        since = datetime.fromisoformat(_parsed(written)["since"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return _LONG_AGO
    return since if since.tzinfo is not None else _LONG_AGO


def _quarantine(metadata: Mapping[str, Any]) -> str:
    traffic, written = _traffic(metadata), _annotation(metadata, names.ANNOTATION_QUARANTINE)
    if traffic == names.TRAFFIC_ALLOWED:
        return ""  # as above
    if written is None:
        return (
            f"its label {names.LABEL_TRAFFIC} is {traffic}"
            if traffic == names.TRAFFIC_FENCED
            else ""
        )
    try:
        reason = str(_parsed(written)["reason"])
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = str(written)
    return _sendable(reason)[:_MAX_REASON]


def _traffic(metadata: Mapping[str, Any]) -> str | None:
    """The label by which the Service selects the pod."""
    value: str | None = metadata.get("labels", {}).get(names.LABEL_TRAFFIC)
    return value


def _annotation(metadata: Mapping[str, Any], name: str) -> str | None:
    value: str | None = metadata.get("annotations", {}).get(name)
    return value
