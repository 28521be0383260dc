"""Types of the fields of answers, each with its bounds, since a reader does not trust an answer."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler
from pydantic.functional_validators import WrapValidator

from fleet_worker.protocol.types import Source

_LONGEST_SECONDS = 1e10


def _not_negative(seconds: float) -> float:
    return max(seconds, 0.0)


def _bounded(measure: float | None) -> float | None:
    """Return None for NaN, and a very large number for an infinite one."""
    if measure is None or math.isnan(measure):
        return None
    return min(max(measure, -1e9), 1e9)


def _from_0_to_1(share: float | None) -> float | None:
    """Return None for a share outside of 0 to 1."""
    return share if share is not None and 0 <= share <= 1 else None


def _known_source(value: Any, read: ValidatorFunctionWrapHandler) -> Source | None:
    """Return None for a kind of source that this release does not know."""
    try:
        source: Source | None = read(value)
    except ValidationError:
        return None
    return source


Label = Annotated[str, Field(max_length=128)]
Text = Annotated[str, Field(max_length=1024)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[
    float, Field(le=_LONGEST_SECONDS, allow_inf_nan=False), AfterValidator(_not_negative)
]
"""An age or a duration. A negative one, from a clock that went back, counts as 0."""
Measure = Annotated[float | None, AfterValidator(_bounded)]
Share = Annotated[float | None, AfterValidator(_from_0_to_1)]
AnySource = Annotated[Source | None, WrapValidator(_known_source)]
