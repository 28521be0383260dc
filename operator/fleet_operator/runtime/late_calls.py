"""Calls that workers refuse because they got other weights after the read that the call was made on.

One refusal is a race that the next read ends. A worker that refuses the same call twice in a row is a fault.
"""

from __future__ import annotations

from fleet_operator.core.work import Work


class LateCalls:
    """The refusals of one fleet. Of its workers only the names are kept, which their successors have again."""

    def __init__(self) -> None:
        self._refused: dict[str, Work] = {}
        self._reported: set[Work] = set()

    def is_new_fault(self, pod: str, work: Work) -> bool:
        """Note a refusal. Returns whether it repeats the last one, and no worker's refusal of this work was a
        fault before.
        """
        repeats = self._refused.get(pod) == work
        self._refused[pod] = work
        if not repeats or work in self._reported:
            return False
        self._reported.add(work)
        return True

    def end(self, pod: str) -> None:
        """Note that a call to a worker had another end. A fault ends with the last worker that refuses its work."""
        if self._refused.pop(pod, None) is not None:
            self._reported.intersection_update(self._refused.values())
