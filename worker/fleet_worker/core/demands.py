"""What weights a request insists upon, by its headers.

`x-weight-version-exact: 43` wants tokens of this version only; `x-weight-version-min: 43` of this
version or a later one of the same run. Within a run versions are numbers, `43` or `step_43`, and
are compared as numbers: step_9 comes before step_10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# As the operator reads them (fleet_operator.core.rewind); 18 digits fit into 64 bits.
_NUMBERED = re.compile(r"(?:step[_-])?([0-9]{1,18})")


class DemandError(ValueError):
    """A header that no version could meet."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request's tokens must be made of; without fields, of anything.

    Fields:
        exact: this label.
        at_least: this number, or a greater one.
    """

    exact: str | None = None
    at_least: int | None = None

    @property
    def is_any(self) -> bool:
        """Whether any version will do."""
        return self.exact is None and self.at_least is None

    def is_met_by(self, version: str | None) -> bool:
        """Whether a version will do; None stands for weights that nobody vouches for."""
        if version is None:
            return self.is_any
        if self.exact is not None and version != self.exact:
            return False
        if self.at_least is None:
            return True
        number = number_of(version)
        return number is not None and number >= self.at_least

    def is_met_by_all(self, versions: Iterable[str]) -> bool:
        """Whether every one of some versions will do."""
        return all(self.is_met_by(version) for version in versions)

    def __str__(self) -> str:
        wanted = []
        if self.exact is not None:
            wanted.append(f"version {self.exact}")
        if self.at_least is not None:
            wanted.append(f"version {self.at_least} or later")
        return " and ".join(wanted) or "any version"


def number_of(version: str) -> int | None:
    """The number of a version that is one, `43` or `step_43`; None for other labels."""
    found = _NUMBERED.fullmatch(version)
    return int(found.group(1)) if found else None


def demand_of(exact: str | None, minimum: str | None) -> Demand:
    """Read the headers.

    Errors:
        DemandError: the minimum is no numbered version, or a header is empty.
    """
    if exact is not None and not exact.strip():
        raise DemandError("x-weight-version-exact is empty")
    at_least = None
    if minimum is not None:
        at_least = number_of(minimum.strip())
        if at_least is None:
            raise DemandError(
                "x-weight-version-min must be a numbered version, as 43 or step_43: only those"
                " have an order"
            )
    return Demand(exact.strip() if exact is not None else None, at_least)
