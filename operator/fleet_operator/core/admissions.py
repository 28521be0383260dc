"""Finds workers whose latch may still open: an admission without an answer may arrive late.

It can wait in a network or in a hung process for longer than the operator waits for the answer. Its
sender may have been a former leader. A worker refuses it as soon as it has accepted a newer epoch,
and every admission is followed by a newer epoch.
"""

from __future__ import annotations

from fleet_worker.protocol import Epoch, WorkerState


def may_open_late(state: WorkerState, *, lost: Epoch | None, term: int) -> bool:
    """Whether an admission may still open the latch of a worker that answers and has it closed.

    `lost`: the epoch of the last admission without an answer; None without one. `term`: of the leader.
    """
    if state.admitted:
        return False
    if state.operation is not None and state.operation.kind == "resume":
        return True
    accepted = state.epoch
    if accepted is None or accepted.term < term:
        return True  # an earlier leader may have sent one
    return lost is not None and not lost < accepted
