"""The processes of one training, which succeed or fail together.

Where one process alone raises, the others wait for it in the next collective, until a watchdog ends the
training without the cause. So every error is exchanged first, and each process raises it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from rlfleet.errors import RlfleetError

T = TypeVar("T")


def together(work: Callable[[], T]) -> T:
    """Do the part of this process, and wait for those of the others. All processes have to call it.

    Returns: the result of process 0.

    Errors: the first error of any process, in the order of their ranks.
    """
    group = _group()
    if group is None:
        return work()
    done: list[Any] = [None] * group.get_world_size()
    failed: Exception | None = None
    result: T | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - each one is raised, in all processes
        failed = error
    group.all_gather_object(done, (result, _sendable(failed)))
    for rank, (_, reported) in enumerate(done):
        if reported is not None:
            raise failed if failed is not None and rank == group.get_rank() else reported
    first: T = done[0][0]
    return first


def _group() -> Any:
    """torch.distributed with its default group; None for a training in one process."""
    found = sys.modules.get("torch.distributed")  # imported by what has made the group
    if found is None or not found.is_available() or not found.is_initialized():
        return None
    return found if found.get_world_size() > 1 else None


def _sendable(error: Exception | None) -> Exception | None:
    """The error, or its words if it cannot be sent: an exchange that fails would leave others waiting."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - whatever its class does
        return RlfleetError(f"{type(error).__name__}: {error}")
    return error
