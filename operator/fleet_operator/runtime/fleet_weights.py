"""The WeightVersions that name one fleet, in order of creation.

A decision is made on the oldest `LOOKED_AT` of them. The others get a status that says so, once, and
`AT_ONCE` of them in `TURN_SECONDS`. So any number of them adds nothing to the cost of a decision.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime
from itertools import islice

from fleet_operator.core.idle_weights import says_too_many
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.steering import LOOKED_AT

AT_ONCE = 20
TURN_SECONDS = 1.0

_Place = tuple[datetime, str]


class FleetWeights:
    """The WeightVersions of one fleet. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._order: list[_Place] = []
        self._views: dict[str, WeightsView | UnreadWeights] = {}
        self._due: dict[str, None] = {}
        """Names of those beyond `LOOKED_AT` whose stored status does not say so. The next comes first."""
        self._turn: list[str] = []
        self._turn_began_at = float("-inf")

    def __len__(self) -> int:
        return len(self._order)

    @property
    def looked_at(self) -> list[WeightsView | UnreadWeights]:
        """Those that a decision is made on, oldest first."""
        return [self._views[name] for _, name in self._order[:LOOKED_AT]]

    @property
    def beyond(self) -> int:
        """How many are not looked at."""
        return max(len(self._order) - LOOKED_AT, 0)

    def put(self, weights: WeightsView | UnreadWeights) -> bool:
        """Take in a WeightVersion as it is stored. Returns: whether the fleet must be reconciled. While others beyond
        `LOOKED_AT` wait for their turn, it will be by then.
        """
        place = _place_of(weights)
        before = self._views.get(weights.name)
        moves = before is None or _place_of(before) != place
        if moves:
            self.remove(weights.name)
            at = bisect_left(self._order, place)
            self._order.insert(at, place)
        self._views[weights.name] = weights
        self._note(weights.name)
        if moves and at < LOOKED_AT < len(self._order):
            self._note(self._order[LOOKED_AT][1])  # the fleet does not look at it any more
        if not self._is_beyond(place) or (moves and before is not None):
            return True
        return self._due.keys() == {weights.name}

    def remove(self, name: str) -> None:
        """Forget a WeightVersion. Without effect if it is not known."""
        found = self._views.pop(name, None)
        if found is None:
            return
        at = bisect_left(self._order, _place_of(found))
        del self._order[at]
        self._due.pop(name, None)
        if at < LOOKED_AT <= len(self._order):
            self._note(self._order[LOOKED_AT - 1][1])  # the fleet looks at it from now on

    def turn(self, now: float) -> list[WeightsView | UnreadWeights]:
        """Those beyond `LOOKED_AT` that get their status now: other ones after `TURN_SECONDS`."""
        if self.turn_in_seconds(now) <= 0:
            self._turn_began_at = now
            self._turn = list(islice(self._due, AT_ONCE))
            for name in self._turn:
                self._due[name] = self._due.pop(name)  # the last one from now on
        return [self._views[name] for name in self._turn if name in self._due]

    def turn_in_seconds(self, now: float) -> float:
        """Seconds to the next turn; infinite if each has its status."""
        if not self._due:
            return float("inf")
        return max(self._turn_began_at + TURN_SECONDS - now, 0.0)

    def _note(self, name: str) -> None:
        weights = self._views[name]
        if self._is_beyond(_place_of(weights)) and not says_too_many(weights):
            self._due.setdefault(name)
        else:
            self._due.pop(name, None)

    def _is_beyond(self, place: _Place) -> bool:
        return self.beyond > 0 and place > self._order[LOOKED_AT - 1]


def _place_of(weights: WeightsView | UnreadWeights) -> _Place:
    return weights.created_at, weights.name
