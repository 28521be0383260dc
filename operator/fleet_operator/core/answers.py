"""Whether an answer is that of the worker that was asked."""

from __future__ import annotations

from fleet_worker.protocol import Reason, WorkerState

_NAMED_CHARACTERS = 253


def problem_of_answer(pod_uid: str, state: WorkerState | None, reason: str | None) -> str:
    """Why an answer does not count, empty if it does: addresses of pods are used again.

    Args:
        pod_uid: The pod that was asked.
        state: What the answer holds, if it holds a state.
        reason: Why the worker refused, if it refused.
    """
    other = state is not None and state.pod_uid != pod_uid
    if not other and reason != Reason.WRONG_POD:
        return ""
    if state is not None and state.pod_uid is None:
        return "the worker at this address does not know its pod: its RLFLEET_POD_UID is not set"
    name = state.worker[:_NAMED_CHARACTERS] if state is not None else "without a name"
    return f"another pod answers at this address: {name}"
