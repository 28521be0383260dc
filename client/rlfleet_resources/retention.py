"""The rule that says which old versions of a WeightVersion stay."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlfleet_resources.base import Resource


class Retention(Resource):
    """Which versions stay although nothing needs them.

    Fields:
        keep: the newest ones, up to the applied version.
        keep_every: those whose number is a multiple; None for none.
    """

    keep: Annotated[int, Field(ge=1, le=100_000)] = 5
    keep_every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
