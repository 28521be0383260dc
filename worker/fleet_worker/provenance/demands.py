"""The weights that a request demands, in its headers or in its body.

`x-weight-version-exact: 43` accepts tokens of this version only. `x-weight-version-min: 43` accepts
this version and later ones of the same run. `x-weight-run: run-8` accepts that run only. Versions such
as `43` or `step_43` are compared as numbers: step_9 comes before step_10. Without a run the request
means the run that the worker serves when the request arrives. Weights that belong to no run are not
comparable with those of a run.

Routers drop these headers on routes that they do not know. So `weight_version_exact`,
`weight_version_min` and `weight_run` in the body mean the same.
Source: `vllm-router` 0.1.17, `/v1/chat/completions/tokens`, `/tokenize`, `/v1/responses`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
        began_with: the weights that the request began with. An exact version then means only these
            weights, and a minimum without a run means their run; see `bound_to`.
        by_scope: the trainer names no runs, so `WeightName.scope` counts as the run.
    """

    exact: str | None = None
    at_least: int | None = None
    run: str | None = None
    began_with: WeightName | None = None
    by_scope: bool = False

    @property
    def is_any(self) -> bool:
        """Whether the request accepts all weights."""
        return self.exact is None and self.at_least is None and self.run is None

    def is_met_by(self, name: WeightName | None) -> bool:
        """Return whether the request accepts these weights; None means weights without a name."""
        if name is None:
            return self.is_any
        if self.run is not None and name.run_id != self.run:
            return False
        return self._has_exactly(name) and self._has_at_least(name)

    def _has_exactly(self, name: WeightName) -> bool:
        if self.exact is None:
            return True
        return name.version == self.exact and self.began_with in (None, name)

    def _has_at_least(self, name: WeightName) -> bool:
        if self.at_least is None:
            return True
        number = number_of(name.version)
        return number is not None and number >= self.at_least and self._is_of_its_run(name)

    def _is_of_its_run(self, name: WeightName) -> bool:
        """Whether weights are of the run that the request began with. None is not any run."""
        began = self.began_with
        if began is None or self.run is not None:
            return True
        same_scope = not self.by_scope or name.scope == began.scope
        return name.run_id == began.run_id and same_scope

    def bound_to(self, name: WeightName, *, by_scope: bool = False) -> Demand:
        """Return the demand for all tokens of a request that begins with these weights.

        A swap may bring weights of another run while the request is held. Numbers of two runs are
        not comparable, and an exact version means one set of weights.

        Args:
            name: Name of the weights.
            by_scope: The trainer names no runs.
        """
        return replace(self, began_with=name, by_scope=by_scope)

    def joined_with(self, other: Demand) -> Demand:
        """Return the demand that asks for both.

        Errors:
            DemandError: the two ask for different weights.
        """
        joined: dict[str, Any] = {}
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
        began = self.began_with
        if self.exact is not None and began is not None and began.digest is not None:
            parts.append(f"digest {began.digest}")
        if self.run is not None:
            parts.append(f"run {self.run}")
        elif self.at_least is not None and began is not None:
            parts.append(f"the run of {began}")
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
