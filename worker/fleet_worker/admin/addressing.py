"""Check that a call is for this pod and this process, and is not a repeat."""

from __future__ import annotations

from collections import OrderedDict

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

MAX_SESSIONS = 64
"""Operator processes of which the worker remembers the last number. Calls of a leader before these
have an old epoch, which the worker refuses."""


def check_pod(wanted: str, own: str | None) -> None:
    """Refuse a call that names another pod, because Kubernetes reuses addresses of pods.

    `own`: None if the worker does not know its uid. Errors: Refusal `WrongPod`.
    """
    if own is None:
        message = "the call names a pod, but this worker does not know its uid: set RLFLEET_POD_UID"
        raise Refusal(Reason.WRONG_POD, message)
    if wanted != own:
        message = f"the call is for another pod; this pod has uid {own}"
        raise Refusal(Reason.WRONG_POD, message)


class Taken:
    """The calls that a process has accepted: each once, in the order of their sender's numbers."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def take(self, instance: str, session: str, number: int) -> None:
        """Accept a call.

        Args:
            instance: The process that the call is for.
            session: The sender.
            number: Grows within the session.

        Errors:
            Refusal: `StaleCall`.
        """
        if instance != self._instance:
            raise Refusal(Reason.STALE_CALL, "the call is for another process of this pod")
        if number <= self._numbers.get(session, -1):
            raise Refusal(
                Reason.STALE_CALL, "the worker has already accepted this call, or a later one"
            )
        self._numbers[session] = number
        self._numbers.move_to_end(session)
        if len(self._numbers) > MAX_SESSIONS:
            self._numbers.popitem(last=False)
