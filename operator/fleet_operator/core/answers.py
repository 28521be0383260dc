"""Checks that an answer comes from the pod that the operator called."""

from __future__ import annotations

from fleet_worker.protocol import Reason, WorkerState

_NAMED_CHARACTERS = 253


def problem_of_answer(pod_uid: str, state: WorkerState | None, reason: str | None) -> str:
    """Returns why an answer does not count; empty if it does. Addresses of pods are reused.

    Args:
        pod_uid: The pod that the operator called.
        state: The state in the answer, if there is one.
        reason: Why the worker refused, if it refused.
    """
    other = state is not None and state.pod_uid != pod_uid
    if not other and reason != Reason.WRONG_POD:
        return ""
    if state is not None and state.pod_uid is None:
        return "the worker at this address does not know its pod: RLFLEET_POD_UID is not set in it"
    name = state.worker[:_NAMED_CHARACTERS] if state is not None else "without a name"
    return f"another pod answers at this address: {name}"
