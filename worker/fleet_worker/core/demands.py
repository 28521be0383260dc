"""What weights a request insists upon, by its headers.

`x-weight-version-exact: 43` wants tokens of this version only; `x-weight-version-min: 43` of this
version or a later one of the same run; `x-weight-run: run-8` of that run only. Within a run
versions are numbers, `43` or `step_43`, and are compared as numbers: step_9 comes before step_10.
Without a run, the request means the run that the worker serves when it comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fleet_worker.core.weight_names import WeightName
from fleet_worker.protocol import HEADER_RUN, HEADER_VERSION_EXACT, HEADER_VERSION_MIN

# As the operator reads them (fleet_operator.core.rewind); 18 digits fit into 64 bits.
_NUMBERED = re.compile(r"(?:step[_-])?([0-9]{1,18})")


class DemandError(ValueError):
    """A header that no version could meet."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request's tokens must be made of; without fields, of anything.

    Fields:
        exact: this version.
        at_least: this number, or a greater one.
        run: of this run.
        weights: of just these weights; see `bound_to`.
    """

    exact: str | None = None
    at_least: int | None = None
    run: str | None = None
    weights: WeightName | None = None

    @property
    def is_any(self) -> bool:
        """Whether any weights will do."""
        return self.exact is None and self.at_least is None and self.run is None

    def is_met_by(self, name: WeightName | None) -> bool:
        """Whether some weights will do; None stands for weights that nobody vouches for."""
        if name is None:
            return self.is_any
        if self.exact is not None and name.version != self.exact:
            return False
        if self.run is not None and name.run_id != self.run:
            return False
        if self.weights is not None and name != self.weights:
            return False
        if self.at_least is None:
            return True
        number = number_of(name.version)
        return number is not None and number >= self.at_least

    def bound_to(self, name: WeightName) -> Demand:
        """The demand of a request that these weights meet, for all of its tokens.

        A swap may put another run's weights under the request while it is held. Their numbers are
        not compared with those that it was let in by, and two weights are not one exact version.
        """
        if self.exact is not None:
            return replace(self, weights=name)
        if self.at_least is not None and self.run is None:
            return replace(self, run=name.run_id)
        return self

    def __str__(self) -> str:
        wanted = []
        if self.exact is not None:
            wanted.append(f"version {self.exact}")
        if self.at_least is not None:
            wanted.append(f"version {self.at_least} or later")
        if self.weights is not None and self.weights.digest is not None:
            wanted.append(f"digest {self.weights.digest}")
        if self.run is not None:
            wanted.append(f"run {self.run}")
        return " and ".join(wanted) or "any version"


def number_of(version: str) -> int | None:
    """The number of a version that is one, `43` or `step_43`; None for other labels."""
    found = _NUMBERED.fullmatch(version)
    return int(found.group(1)) if found else None


def demand_of(exact: str | None, minimum: str | None, run: str | None = None) -> Demand:
    """Read the headers.

    Errors:
        DemandError: the minimum is no numbered version, or a header is empty.
    """
    for header, value in ((HEADER_VERSION_EXACT, exact), (HEADER_RUN, run)):
        if value is not None and not value.strip():
            raise DemandError(f"{header} is empty")
    at_least = None
    if minimum is not None:
        at_least = number_of(minimum.strip())
        if at_least is None:
            raise DemandError(
                f"{HEADER_VERSION_MIN} must be a numbered version, as 43 or step_43: only those"
                " have an order"
            )
    return Demand(
        exact.strip() if exact is not None else None,
        at_least,
        run.strip() if run is not None else None,
    )
