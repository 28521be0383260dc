"""Changes of the model by a load, combined from the answers of the engine's processes.

A process compares stored values, the ones that the kernels read. Of a large model it compares a
sample, stratified by parameter. It also compares a sum over all bits of each parameter, so that "not
changed" is exact and no estimate (docs/decisions/0017-effect-of-a-load.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAMPLE = 1 << 16
"""Elements that a process compares. One standard error of the share is at most 0.2 percentage points.
"""
MIN_PER_PARAMETER = 64
"""Smallest sample of each parameter, so that small ones count too."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Changes by one load, over all processes of an engine.

    Fields:
        changed_share: estimated share of the compared parameters' elements whose stored value
            changed, 0 to 1. None if nothing could be compared. It can be 0 although a few changed,
            see `unchanged`.
        unchanged: whether all of the model was compared and not one bit differs.
        compared_elements: number of elements read.
        elements: number of elements of the compared parameters.
        why_not: why parameters could not be compared; empty if all were.
    """

    changed_share: float | None = None
    unchanged: bool = False
    compared_elements: int = 0
    elements: int = 0
    why_not: str = ""

    @property
    def comparable(self) -> bool:
        """Whether a share of changed elements is known."""
        return self.changed_share is not None


def shares_of_sample(sizes: Sequence[int], *, sample: int = SAMPLE) -> list[int]:
    """Return the number of elements to compare of each parameter.

    Args:
        sizes: Number of elements of each parameter.
        sample: Approximate number of elements to compare in all. Small parameters get at least
            `MIN_PER_PARAMETER`.

    Returns:
        One number for each parameter. All elements, if they are not more than the sample.
    """
    total = sum(sizes)
    if total <= sample:
        return list(sizes)
    return [min(size, max(MIN_PER_PARAMETER, size * sample // total)) for size in sizes]


def combined(answers: Iterable[Mapping[str, Any]]) -> Effect:
    """Combine the answers of all processes into the effect of a load.

    Args:
        answers: Each has `compared`, the number of elements read. `covered` is the number of elements
            of their parameters, `changed` an estimate of how many of these changed, and `same` tells
            whether no bit of them changed. `why_not` tells why other parameters were not compared.
    """
    parts = list(answers)
    covered = sum(int(part["covered"]) for part in parts)
    changed = sum(float(part["changed"]) for part in parts)
    same = all(bool(part["same"]) for part in parts)
    why_not = next((str(part["why_not"]) for part in parts if part["why_not"]), "")
    compared = sum(int(part["compared"]) for part in parts)
    if covered == 0:
        return Effect(why_not=why_not or "the model has no parameters")
    if same and why_not:
        # The compared part did not change, but the rest may have.
        return Effect(why_not=why_not)
    share = min(1.0, changed / covered)
    return Effect(share, same, compared, covered, why_not)
