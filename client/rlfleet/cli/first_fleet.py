"""The checks of `rlfleet doctor` about the first fleet, before it exists: pure, as `diagnosis`."""

from __future__ import annotations

from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import Answer, fail, ok, unread
from rlfleet.errors import NotFound, Refused, RlfleetError
from rlfleet.ports import Json
from rlfleet_resources.names import API_VERSION

MINIMAL: Json = {
    "apiVersion": API_VERSION,
    "kind": "InferenceFleet",
    "metadata": {"name": "rlfleet-doctor"},
    "spec": {
        "model": {"name": "qwen3-0.6b", "source": {"path": "/weights/base"}},
        "weights": {
            "roots": ["/weights"],
            "volumes": [
                {
                    "name": "weights",
                    "mountPath": "/weights",
                    "persistentVolumeClaim": {"claimName": "weights"},
                }
            ],
        },
    },
}
"""The sample crds/samples/valid/fleet-smallest.yaml, under another name. Its image is the operator's default one, its engine has no flags of its own."""


def fleet_check(answer: Answer, namespace: str) -> Check | None:
    """Whether the API server takes a fleet. None if it lacks the kind, which another check reports."""
    if isinstance(answer, NotFound):
        if "namespaces " not in str(answer):
            return None
        remedy = f"kubectl create namespace {namespace}"
        return fail("fleet", f"there is no namespace {namespace!r}", remedy)
    if isinstance(answer, Refused):
        message = (
            f"the API server refuses a minimal fleet in namespace {namespace!r}: {answer.message}"
        )
        return fail("fleet", message, "correct the policy, webhook or quota that refuses it")
    if isinstance(answer, RlfleetError):
        return unread("fleet", answer)
    message = (
        f"the API server takes a minimal fleet in namespace {namespace!r} (dry run); "
        "for yours, with the names of its engine's flags: rlfleet validate FILE; vLLM checks their "
        "values when a worker starts"
    )
    return ok("fleet", message)
