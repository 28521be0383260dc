"""The check of `rlfleet doctor` about Events of workers: pure, as `diagnosis`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from rlfleet.cli.causes import remedies_of
from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import Answer, fail, ok, unread
from rlfleet.errors import RlfleetError
from rlfleet.ports import Json
from rlfleet.words import bounded

_STARTING = frozenset(
    {
        "Failed",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedScheduling",
        "FailedToRetrieveImagePullSecret",
    }
)
"""Reasons of Events about a pod that cannot start. A pull that fails is `Failed`."""


def event_checks(
    events: Answer, pods: Answer, namespace: str, explained: Collection[str] = ()
) -> Iterator[Check]:
    """Workers that cannot start, by their Events.

    `pods`: the workers of the namespace. `explained`: those that another check has reported.
    """
    if isinstance(pods, RlfleetError) or isinstance(events, RlfleetError):
        yield unread("workers", pods if isinstance(pods, RlfleetError) else events)
        return
    waiting = {
        p["metadata"]["uid"]: p["metadata"]["name"]
        for p in pods["items"]
        if not _is_ready(p) and p["metadata"]["name"] not in explained
    }
    last: dict[tuple[str, str], str] = {}
    for event in events["items"]:
        uid = event["involvedObject"].get("uid")
        if uid in waiting and event.get("reason") in _STARTING:
            last[waiting[uid], event["reason"]] = bounded(event.get("message") or "")
    for (pod, reason), message in sorted(last.items()):
        images = "pull" in message.lower() or "image" in message.lower()
        remedies = " ".join(remedies_of(message, namespace))
        remedy = remedies or f"kubectl -n {namespace} describe pod {pod}"
        if reason == "Failed" and images:
            remedy = "check spec.engine.image of the fleet and spec.pod.imagePullSecrets"
        yield fail("workers", f"{pod} cannot start, {reason}: {message}", remedy)
    if not last and not explained and pods["items"]:
        yield ok("workers", f"no Event reports a worker of {namespace!r} that cannot start")


def _is_ready(pod: Json) -> bool:
    conditions: list[dict[str, Any]] = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
