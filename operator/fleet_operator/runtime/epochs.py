"""The epoch that every call carries: a term, and a number that grows with every new goal of a fleet
within that term, so that a call for an older goal that arrives late is refused.

The term is the leader's. Where a worker has obeyed a newer one, which it can have seen only if the
Lease was deleted and made again, the term of *its fleet* is raised above that, and only after the
Lease was read again and names this process. The Lease and other fleets are not touched: what
the workers of a fleet answer is up to the image that its spec names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.observed import PodView
from fleet_operator.runtime.informer import FleetKey
from fleet_worker.protocol import MAX_TERM, Epoch

logger = logging.getLogger(__name__)

_NONE = (WeightsId(""), 0)


class Epochs:
    """Sequences and terms of all fleets. Memory only: a new process has a new term, and one refusal
    and one reading of the Lease teach it what a fleet needs above that.
    """

    def __init__(self, term: Callable[[], int]) -> None:
        self._term = term
        self._goals: dict[FleetKey, tuple[WeightsId, int]] = {}
        self._floors: dict[FleetKey, int] = {}
        self._refused: dict[FleetKey, int] = {}
        self._beyond: dict[FleetKey, dict[str, PodView]] = {}
        self._asked = asyncio.Event()

    def last(self, key: FleetKey) -> Epoch:
        """The epoch of the fleet's present goal."""
        _, sequence = self._goals.get(key, _NONE)
        return Epoch(term=max(self._term(), self._floors.get(key, -1) + 1), sequence=sequence)

    def goal(self, key: FleetKey) -> WeightsId:
        """The weights of the fleet's present goal."""
        return self._goals.get(key, _NONE)[0]

    def for_step(self, key: FleetKey, goal: Named) -> Epoch:
        """The epoch of a step towards these weights. A digest that becomes known is no new goal."""
        before, sequence = self._goals.get(key, _NONE)
        new = not same_weights(before, goal)
        self._goals[key] = (WeightsId.of(goal), sequence + 1 if new else sequence)
        return self.last(key)

    def note_refusal(self, key: FleetKey, pod: PodView, obeyed: Epoch) -> None:
        """A worker has refused a call, since it has obeyed this epoch.

        Nothing is raised here. Until `settle` has read the Lease, the fleet is not called.
        """
        if not self.last(key) < obeyed:
            return  # a late call of our own
        if obeyed.term >= MAX_TERM:
            known = self._beyond.setdefault(key, {})
            if pod.uid not in known:
                logger.error("%s obeys term %d, the highest there is", pod.name, obeyed.term)
            known[pod.uid] = pod
            return
        self._refused[key] = max(obeyed.term, self._refused.get(key, 0))
        self._asked.set()

    def is_settling(self, key: FleetKey) -> bool:
        """Whether a worker of the fleet has refused a call, and the Lease was not read since."""
        return key in self._refused

    async def settle(
        self, confirm: Callable[[], Awaitable[bool]], again: Callable[[FleetKey, float], None]
    ) -> None:
        """Raise terms of fleets whose workers have refused, while the Lease names this process.

        `confirm` reads the Lease and says whether it does. Never returns: where it does not, the
        leadership has ended, and with it the process.
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            refused = self.refused()  # only these came before the reading
            if not await confirm():
                continue
            for key in self.raise_above(refused):
                again(key, 0)
            if self._refused:
                self._asked.set()

    def refused(self) -> dict[FleetKey, int]:
        """Fleets whose workers have refused a call since the Lease was read, and what they obey."""
        return dict(self._refused)

    def raise_above(self, refused: Mapping[FleetKey, int]) -> Iterable[FleetKey]:
        """Raise the terms of these fleets above what their workers have obeyed. To be called when
        the Lease, read after the refusals, names this process. Returns: the fleets.
        """
        for key, term in refused.items():
            if self._refused.get(key, 0) <= term:
                self._refused.pop(key, None)
            self._floors[key] = max(term, self._floors.get(key, 0))
            logger.warning(
                "fleet %s/%s: a worker has obeyed term %d, and the Lease is ours: calls carry term "
                "%d from now on",
                *key,
                term,
                self.last(key).term,
            )
        return tuple(refused)

    def beyond(self, key: FleetKey, pods: Iterable[PodView]) -> list[str]:
        """Names of those of these pods that obey the highest term there is: no call reaches them
        any more. A container that was started again obeys nothing yet.
        """
        there = {(p.uid, p.restarts) for p in pods}
        known = self._beyond.get(key, {})
        for gone in [u for u, p in known.items() if (u, p.restarts) not in there]:
            del known[gone]
        if not known:
            self._beyond.pop(key, None)
        return sorted(p.name for p in known.values())

    def forget(self, key: FleetKey) -> None:
        """Drop what is known of a fleet that is gone."""
        for known in (self._goals, self._floors, self._refused, self._beyond):
            known.pop(key, None)
