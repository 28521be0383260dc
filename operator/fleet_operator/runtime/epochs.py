"""The epoch of every call to a worker: the leader's term, and a sequence that grows with each new goal of
the fleet, and after each step that admits workers. Workers refuse calls of an older epoch, so a late call
for an older goal has no effect, nor has a late admission after another call.

A worker may have obeyed a newer term than the leader's if the Lease was deleted and recreated. Then the
term of *that fleet* is raised above it, after another read of the Lease has shown that it names this
process. The Lease and other fleets do not change: the answers of a fleet's workers depend on the image
in its spec, which is not trusted.

For the same reason a term far beyond the Lease's concerns only the pod that reports it. Raised above it,
the fleet's honest workers would obey a term that no later leader could exceed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_worker.protocol import MAX_TERM, Epoch

logger = logging.getLogger(__name__)

MAX_AHEAD = 1_000_000
"""How far a worker's term can be ahead of the Lease's, if that was deleted and counts from 1 again. That many
leaders follow each other in four months if none leads for longer than the Lease lasts.

Honest workers stay within it, also where one worker makes its fleet's term as high as it can: the next
leader's Lease counts one more, as their term does.
"""
_NONE = (WeightsId(""), 0)


class Epochs:
    """Sequences and terms of all fleets, in memory only. A new process has a new term, and learns from one
    refusal and one read of the Lease which fleets need a higher one.
    """

    def __init__(self, term: Callable[[], int]) -> None:
        self._term = term
        self._goals: dict[FleetKey, tuple[WeightsId, int]] = {}
        self._admitting: set[FleetKey] = set()
        """Fleets whose last step admits workers."""
        self._floors: dict[FleetKey, int] = {}
        self._refused: dict[FleetKey, int] = {}
        self._beyond: dict[FleetKey, dict[str, PodView]] = {}
        self._asked = asyncio.Event()

    def last(self, key: FleetKey) -> Epoch:
        """The epoch of the fleet's current goal."""
        _, sequence = self._goals.get(key, _NONE)
        return Epoch(term=max(self._term(), self._floors.get(key, -1) + 1), sequence=sequence)

    def goal(self, key: FleetKey) -> WeightsId:
        """The weights of the fleet's current goal."""
        return self._goals.get(key, _NONE)[0]

    def for_step(self, key: FleetKey, goal: Named, *, admits: bool) -> Epoch:
        """The epoch of a step towards these weights. A digest that becomes known does not change the goal.

        `admits`: the step admits workers, so that the next one has a newer epoch.
        """
        before, sequence = self._goals.get(key, _NONE)
        new = not same_weights(before, goal) or key in self._admitting
        (self._admitting.add if admits else self._admitting.discard)(key)
        self._goals[key] = (WeightsId.of(goal), sequence + 1 if new else sequence)
        return self.last(key)

    def note_refusal(self, key: FleetKey, pod: PodView, obeyed: Epoch) -> None:
        """Note that a worker refused a call because it has obeyed this newer epoch.

        This raises no term. The fleet gets no calls until `raise_terms` has read the Lease.
        """
        if not self.last(key) < obeyed:
            return  # a late call of this process
        if obeyed.term > min(self._term() + MAX_AHEAD, MAX_TERM - 1):
            known = self._beyond.setdefault(key, {})
            if pod.uid not in known:
                logger.error(
                    "%s obeys term %d, and the Lease counts %d. The pod refuses all calls: delete it",
                    pod.name,
                    obeyed.term,
                    self._term(),
                    extra=fleet_fields("term_out_of_reach", key, pod=pod.name, term=obeyed.term),
                )
            known[pod.uid] = pod
            return
        self._refused[key] = max(obeyed.term, self._refused.get(key, 0))
        self._asked.set()

    def is_term_pending(self, key: FleetKey) -> bool:
        """Whether a worker of the fleet has refused a call since the last read of the Lease."""
        return key in self._refused

    async def raise_terms(
        self, confirm: Callable[[], Awaitable[bool]], requeue: Callable[[FleetKey, float], None]
    ) -> None:
        """Raise the terms of fleets whose workers have refused calls, while the Lease names this process.

        `confirm` reads the Lease and returns whether it names this process. If it does not, leadership
        is lost and the process ends. This method never returns.
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            refused = self.refused()  # only these came before the read
            if not await confirm():
                continue
            for key in self.raise_above(refused):
                requeue(key, 0)
            if self._refused:
                self._asked.set()

    def refused(self) -> dict[FleetKey, int]:
        """Fleets whose workers refused a call since the last read of the Lease, with the terms they obey."""
        return dict(self._refused)

    def raise_above(self, refused: Mapping[FleetKey, int]) -> Iterable[FleetKey]:
        """Raise the terms of these fleets above those that their workers have obeyed. Call it only when the
        Lease, read after the refusals, names this process. Returns: the fleets.
        """
        for key, term in refused.items():
            if self._refused.get(key, 0) <= term:
                self._refused.pop(key, None)
            self._floors[key] = max(term, self._floors.get(key, 0))
            logger.warning(
                "fleet %s/%s: a worker has obeyed term %d, and the Lease names this process: calls "
                "carry term %d from now on",
                *key,
                term,
                self.last(key).term,
                extra=fleet_fields("term_raised", key, term=self.last(key).term),
            )
        return tuple(refused)

    def beyond(self, key: FleetKey, pods: Iterable[PodView]) -> list[str]:
        """Names of the pods that obey a term far beyond the Lease's, and therefore refuse every call. A
        restarted container has obeyed no term yet.
        """
        known = self._beyond.get(key)
        if known is None:
            return []
        there = {(p.uid, p.restarts) for p in pods}
        for gone in [u for u, p in known.items() if (u, p.restarts) not in there]:
            del known[gone]
        if not known:
            self._beyond.pop(key, None)
        return sorted(p.name for p in known.values())

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        for known in (self._goals, self._floors, self._refused, self._beyond):
            known.pop(key, None)
        self._admitting.discard(key)
