"""Remedies by what Kubernetes says about a pod that cannot start: pure.

Source of the texts: the messages of kube-scheduler, kubelet and the API server of Kubernetes 1.30 to 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlfleet.cli.checks import Check

_NAME = r"\"?([A-Za-z0-9](?:[A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?)\"?"
_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (
            rf"persistentvolumeclaim {_NAME} not found",
            "Create the claim {0} in namespace {namespace!r}, or correct spec.weights.volumes of the fleet.",
        ),
        (
            rf"persistentvolumeclaim {_NAME} is being deleted",
            "When no pod uses the claim {0} it is gone. Then create it again in namespace {namespace!r}.",
        ),
        (
            "breaks non-root policy|will run as root",
            "Workers do not run as root: set another runAsUser in spec.podOverlay, or leave it out for user 1000.",
        ),
        (
            "OOMKilled",
            "Raise spec.resources.limits.memory of the fleet, or lower spec.weights.stagingMemory.",
        ),
        (
            "unbound immediate PersistentVolumeClaims",
            "See why the claim is not bound: `kubectl -n {namespace} describe pvc`.",
        ),
        (
            rf"Insufficient {_NAME}",
            "Free or add nodes with {0}, or let a worker ask for less (spec.resources): `kubectl describe nodes`.",
        ),
        (
            r"didn't match Pod's node affinity",
            "Compare spec.pod.nodeSelector and spec.pod.affinity with `kubectl get nodes --show-labels`.",
        ),
        (
            r"untolerated taint\(?s?\)? \{([A-Za-z0-9._/-]{1,253})",
            "Add a toleration for {0} to spec.pod.tolerations, or choose other nodes.",
        ),
        (
            rf"secret {_NAME} not found",
            "Create the Secret {0} in namespace {namespace!r}, or correct its name in the fleet.",
        ),
        (
            rf"configmap {_NAME} not found",
            "Create the ConfigMap {0} in namespace {namespace!r}, or correct its name in the fleet.",
        ),
        (
            rf"couldn't find key {_NAME} in Secret",
            "Add the key {0} to the Secret, or correct it in the fleet.",
        ),
        (
            r"cannot start: model (/[^\s:]{1,1024}): the source does not exist",
            "Correct spec.model.source of the fleet, or write the model to {0}.",
        ),
        (
            "exceeded quota",
            "Ask for less, or raise the quota: `kubectl -n {namespace} describe resourcequota`.",
        ),
        (
            "no match for platform|exec format error",
            "Use an image for the processor of the nodes (spec.engine.image).",
        ),
    )
)


def remedies_of(text: str, namespace: str, known: str = "") -> Iterator[str]:
    """The remedies for what a text says, each once and in the order of the table.

    `known`: another text, whose objects have their remedy already.
    """
    named = set(re.findall(_NAME, known))
    for pattern, remedy in _REMEDIES:
        for found in dict.fromkeys(pattern.findall(text)):
            if found not in named:
                yield remedy.format(found, namespace=namespace)


def not_said(checks: Iterable[Check], text: str) -> tuple[Check, ...]:
    """The checks whose fact a text does not have yet: the words of the cluster are the same in both."""
    return tuple(one for one in checks if _fact(one) not in text)


def _fact(check: Check) -> str:
    """The words of the cluster, which follow those of the check; else the whole message."""
    return check.message.partition(": ")[2] or check.message
