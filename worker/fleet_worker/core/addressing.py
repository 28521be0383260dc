"""Whether a call is for this pod and this process, and comes for the first time."""

from __future__ import annotations

from collections import OrderedDict

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

MAX_SESSIONS = 64
"""Operator processes whose last number is remembered; calls of one that led so many leaders ago are
refused by their epoch."""


def check_pod(wanted: str, own: str | None) -> None:
    """Refuse a call that names another pod: addresses of pods are used again.

    Args:
        wanted: Uid of the pod that the call is for.
        own: Uid of this pod; None if the worker does not know it.

    Errors:
        Refusal: `WrongPod`.
    """
    if own is None:
        message = "the call names a pod, and this worker does not know its own: set RLFLEET_POD_UID"
        raise Refusal(Reason.WRONG_POD, message)
    if wanted != own:
        message = f"the call is for another pod; this one has the uid {own}"
        raise Refusal(Reason.WRONG_POD, message)


class Taken:
    """The calls that a process has taken: each once, and none after a later one of its sender."""

    def __init__(self, instance: str) -> None:
        """Make it.

        Args:
            instance: Of this process.
        """
        self._instance = instance
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def take(self, instance: str, session: str, number: int) -> None:
        """Note a call.

        Args:
            instance: The process that it is for.
            session: Its sender.
            number: Grows within the session.

        Errors:
            Refusal: `StaleCall`.
        """
        if instance != self._instance:
            raise Refusal(Reason.STALE_CALL, "the call is for another process of this pod")
        if number <= self._numbers.get(session, -1):
            raise Refusal(Reason.STALE_CALL, "this call, or a later one, was taken already")
        self._numbers[session] = number
        self._numbers.move_to_end(session)
        if len(self._numbers) > MAX_SESSIONS:
            self._numbers.popitem(last=False)
