"""Whether a load may write only what differs from the version in the engine (`weights.loading: InPlace`)."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.lifecycle.worker import Worker


@dataclass(frozen=True, slots=True)
class Base:
    """The weights with which a version is compared.

    Fields:
        checkpoint: the version in the engine; None if the load must be a full one.
        why_not: why it must; empty if loads in place are off.
    """

    checkpoint: Checkpoint | None
    why_not: str = ""


def base_in_place(worker: Worker, weights: Weights) -> Base:
    """Return what a load of weights may be compared with now. In any doubt the load is a full one.

    The engine decides, too: it knows the memory from which it was loaded, and what its kernels keep.
    """
    good = worker.good
    if not worker.loads_in_place:
        return Base(None)
    if worker.version is None:
        return Base(None, "the weights in the engine are not known")
    if not isinstance(good, Weights):
        return Base(None, "the weights in the engine came over a collective")
    if not good.checkpoint.is_held:
        return Base(None, "the version in the engine is not in memory")
    if not weights.checkpoint.is_held:
        return Base(None, "the version is not in memory")
    return Base(good.checkpoint)
