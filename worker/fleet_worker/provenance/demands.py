"""The weights that a request demands, in its headers or in its body.

`x-weight-version-exact: 43` accepts tokens of this version only. `x-weight-version-min: 43` accepts
this version and later ones of the same run. `x-weight-run: run-8` accepts that run only. Versions such
as `43` or `step_43` are compared as numbers: step_9 comes before step_10. Without a run the request
means the run that the worker serves when the request arrives.

Routers drop these headers on routes that they do not know. So `weight_version_exact`,
`weight_version_min` and `weight_run` in the body mean the same.
Source: `vllm-router` 0.1.17, `/v1/chat/completions/tokens`, `/tokenize`, `/v1/responses`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.protocol import HEADER_RUN, HEADER_VERSION_EXACT, HEADER_VERSION_MIN, number_of


class DemandError(ValueError):
    """A demand that no version can meet."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The weights that a request accepts. Without fields it accepts all.

    Fields:
        exact: only this version.
        at_least: only versions with this number or a greater one.
        run: only versions of this run.
        weights: only these weights; see `bound_to`.
    """

    exact: str | None = None
    at_least: int | None = None
    run: str | None = None
    weights: WeightName | None = None

    @property
    def is_any(self) -> bool:
        """Whether the request accepts all weights."""
        return self.exact is None and self.at_least is None and self.run is None

    def is_met_by(self, name: WeightName | None) -> bool:
        """Return whether the request accepts these weights; None means weights without a name."""
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
        """Return the demand for all tokens of a request that begins with these weights.

        A swap may bring weights of another run while the request is held. Numbers of two runs are
        not comparable, and an exact version means one set of weights.
        """
        if self.exact is not None:
            return replace(self, weights=name)
        if self.at_least is not None and self.run is None:
            return replace(self, run=name.run_id)
        return self

    def joined_with(self, other: Demand) -> Demand:
        """Return the demand that asks for both.

        Errors:
            DemandError: the two ask for different weights.
        """
        joined = {}
        for field in ("exact", "at_least", "run"):
            values = {getattr(self, field), getattr(other, field)} - {None}
            if len(values) > 1:
                raise DemandError(
                    "the headers and the body of the request demand different weights"
                )
            joined[field] = values.pop() if values else None
        return Demand(**joined)

    def __str__(self) -> str:
        parts = []
        if self.exact is not None:
            parts.append(f"version {self.exact}")
        if self.at_least is not None:
            parts.append(f"version {self.at_least} or later")
        if self.weights is not None and self.weights.digest is not None:
            parts.append(f"digest {self.weights.digest}")
        if self.run is not None:
            parts.append(f"run {self.run}")
        return " and ".join(parts) or "any version"


@dataclass(frozen=True, slots=True)
class DemandNames:
    """The names of the parts of a demand, as headers or as fields of a body."""

    exact: str
    minimum: str
    run: str


IN_HEADERS = DemandNames(HEADER_VERSION_EXACT, HEADER_VERSION_MIN, HEADER_RUN)
IN_BODY = DemandNames("weight_version_exact", "weight_version_min", "weight_run")


def demand_of(
    exact: str | None, minimum: str | None, run: str | None = None, names: DemandNames = IN_HEADERS
) -> Demand:
    """Read the demand of a request.

    Errors:
        DemandError: the minimum has no number, or a value is empty.
    """
    for name, value in ((names.exact, exact), (names.run, run)):
        if value is not None and not value.strip():
            raise DemandError(f"{name} is empty")
    at_least = None
    if minimum is not None:
        at_least = number_of(minimum.strip())
        if at_least is None:
            raise DemandError(
                f"{names.minimum} must be a numbered version such as 43 or step_43; other"
                " labels have no order"
            )
    return Demand(
        exact.strip() if exact is not None else None,
        at_least,
        run.strip() if run is not None else None,
    )
