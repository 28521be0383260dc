"""Chooses one call for each worker, where several plans or parts of a plan ask for one.

Precedence, highest first:

    a pod that is deleted or drains    only its drain may call it
    the base weights                   of several calls the last: a renewal of a pause replaces a load,
                                       and a fence replaces the renewal
    removals                           of adapters that no WeightVersion names: they free slots
    the adapters                       in the order of their plans
    drops                              of staged versions of adapters that are not needed any more
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.pod_actions import OnPod, Quarantine

Call = TypeVar("Call", bound=OnPod)


def one_call_per_worker(*plans: Iterable[WorkerCall]) -> tuple[WorkerCall, ...]:
    """Returns at most one call for each worker: from the first plan that has one for it. Within a plan,
    the last call counts.
    """
    chosen: dict[str, WorkerCall] = {}
    for plan in plans:
        for uid, call in {c.pod_uid: c for c in plan}.items():
            chosen.setdefault(uid, call)
    return tuple(chosen.values())


def called_only_by(
    claim: Collection[str], claiming: Iterable[Call], others: Iterable[Call]
) -> tuple[Call, ...]:
    """Returns the other actions, without calls to the claimed workers, and then the claiming ones.

    A quarantine stays: it is not a call. `claim`: uids of pods.
    """
    kept = (a for a in others if isinstance(a, Quarantine) or a.pod_uid not in claim)
    return (*kept, *claiming)
