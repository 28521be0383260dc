"""What a load changed in the model, put together from what each process of the engine has seen.

A process compares stored values: those that the kernels read, whatever their type. Of a large model
it compares a sample, stratified by parameter, and beside it a sum over all bits of each parameter,
so that `nothing changed` is known and not estimated (docs/decisions/0017-effect-of-a-load.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAMPLE = 1 << 16
"""Elements that a process compares: the share of a model is known to 0.2 percentage points (one
standard error, at worst)."""
LEAST_OF_EACH = 64
"""Elements of each parameter that are compared at least, so that small ones are seen at all."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one load changed, over all processes of an engine.

    Fields:
        changed_share: estimated share of the compared parameters' elements whose stored value
            changed, 0 to 1; None if nothing could be compared. It can be 0 although a few changed:
            see `unchanged`.
        unchanged: not one bit of the model changed; only known if all of it was compared.
        compared_elements: how many elements were looked at.
        elements: how many elements those parameters have that were compared.
        why_not: why the comparison was not made, or not of all parameters; empty if all were.
    """

    changed_share: float | None = None
    unchanged: bool = False
    compared_elements: int = 0
    elements: int = 0
    why_not: str = ""

    @property
    def comparable(self) -> bool:
        """Whether anything can be said of what changed."""
        return self.changed_share is not None


def shares_of_sample(sizes: Sequence[int], *, sample: int = SAMPLE) -> list[int]:
    """How many elements of each parameter to compare.

    Args:
        sizes: Elements of each parameter.
        sample: Elements to compare in all, about: small parameters get `LEAST_OF_EACH` beyond it.

    Returns:
        As many numbers; all elements of all parameters if they are no more than the sample.
    """
    total = sum(sizes)
    if total <= sample:
        return list(sizes)
    return [min(size, max(LEAST_OF_EACH, size * sample // total)) for size in sizes]


def combined(answers: Iterable[Mapping[str, Any]]) -> Effect:
    """The effect of a load, from the answers of all processes.

    Args:
        answers: `{compared, covered, changed, same, why_not}` each: elements looked at; elements of
            the parameters they stand for; how many of those have changed, estimated; whether no bit
            of those parameters has changed; why others were left out.
    """
    parts = list(answers)
    covered = sum(int(part["covered"]) for part in parts)
    changed = sum(float(part["changed"]) for part in parts)
    same = all(bool(part["same"]) for part in parts)
    why_not = next((str(part["why_not"]) for part in parts if part["why_not"]), "")
    looked_at = sum(int(part["compared"]) for part in parts)
    if covered == 0:
        return Effect(why_not=why_not or "the model has no parameters")
    if same and why_not:
        # What was seen did not change, what was not seen may have: neither equal nor different.
        return Effect(why_not=why_not)
    share = min(1.0, changed / covered)
    return Effect(share, same, looked_at, covered, why_not)
