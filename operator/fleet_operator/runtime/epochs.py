"""The epoch of every call to a worker: the leader's term, and a sequence. It grows with each new goal of the fleet
or of an adapter, and after each step that admits workers. Workers refuse calls of an older epoch, so a late call
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


class Epochs:
    """Sequence and term of one fleet, in memory only. A new process has a new term, and learns from one
    refusal and one read of the Lease whether the fleet needs a higher one.

    `asked`: set when a worker has refused a call, so that the Lease is read.

    Fields:
        goals: the weights of the current goals, by uid of an adapter's WeightVersion; "" is the fleet's own.
        refused: the highest term that a worker obeys which has refused a call since the last read of the
            Lease; None without one.
    """

    def __init__(
        self, key: FleetKey, term: Callable[[], int], asked: asyncio.Event | None = None
    ) -> None:
        self.key = key
        self._term = term
        self._asked = asked or asyncio.Event()
        self.goals: Mapping[str, WeightsId] = {}
        self._sequence = 0
        self._admits = False
        """Whether the last step admits workers."""
        self._floor = -1
        self.refused: int | None = None
        self._beyond: dict[str, PodView] = {}

    def follow(self, before: Epochs) -> None:
        """Begin after the epochs of an earlier fleet of this name: this fleet can adopt its pods, which refuse older
        calls. A late call for that fleet is then older than each one for this fleet.
        """
        self._sequence, self._floor = before._sequence + 1, before._floor

    @property
    def last(self) -> Epoch:
        """The epoch of the current goal."""
        return Epoch(term=max(self._term(), self._floor + 1), sequence=self._sequence)

    def for_step(self, goals: Mapping[str, Named], *, admits: bool) -> Epoch:
        """The epoch of a step towards these weights (`goals`). A digest that becomes known changes no goal.

        `admits`: the step admits workers, so that the next one has a newer epoch.
        """
        last = self.goals
        stay = last.keys() == goals.keys() and all(same_weights(last[k], goals[k]) for k in last)
        if not stay or self._admits:
            self._sequence += 1
        self.goals, self._admits = {k: WeightsId.of(goal) for k, goal in goals.items()}, admits
        return self.last

    def note_refusal(self, pod: PodView, obeyed: Epoch) -> None:
        """Note that a worker refused a call because it has obeyed this newer epoch.

        This raises no term. The fleet gets no calls until `raise_terms` has read the Lease.
        """
        if not self.last < obeyed:
            return  # a late call of this process
        if obeyed.term > min(self._term() + MAX_AHEAD, MAX_TERM - 1):
            if pod.uid not in self._beyond:
                logger.error(
                    "%s obeys term %d, and the Lease counts %d. The pod refuses all calls: delete it",
                    pod.name,
                    obeyed.term,
                    self._term(),
                    extra=fleet_fields(
                        "term_out_of_reach", self.key, pod=pod.name, term=obeyed.term
                    ),
                )
            self._beyond[pod.uid] = pod
            return
        self.refused = max(obeyed.term, self.refused or 0)
        self._asked.set()

    @property
    def is_term_pending(self) -> bool:
        """Whether a worker has refused a call since the last read of the Lease."""
        return self.refused is not None

    @property
    def calling_term(self) -> int | None:
        """The term of calls; None while none can be sent."""
        return None if self.is_term_pending else self.last.term

    def raise_above(self, term: int) -> None:
        """Raise the term above the one that a worker has obeyed. Call it only when the Lease, read after the
        refusal, names this process.
        """
        if self.refused is not None and self.refused <= term:
            self.refused = None
        self._floor = max(term, self._floor)
        logger.warning(
            "fleet %s/%s: a worker has obeyed term %d, and the Lease names this process: calls "
            "carry term %d from now on",
            *self.key,
            term,
            self.last.term,
            extra=fleet_fields("term_raised", self.key, term=self.last.term),
        )

    def beyond(self, pods: Iterable[PodView]) -> list[str]:
        """Names of the pods that obey a term far beyond the Lease's, and therefore refuse every call. A
        restarted container has obeyed no term yet.
        """
        if not self._beyond:
            return []
        there = {(p.uid, p.restarts) for p in pods}
        self._beyond = {u: p for u, p in self._beyond.items() if (u, p.restarts) in there}
        return sorted(p.name for p in self._beyond.values())


async def raise_terms(
    asked: asyncio.Event,
    fleets: Callable[[], Iterable[Epochs]],
    confirm: Callable[[], Awaitable[bool]],
    requeue: Callable[[FleetKey, float], None],
) -> None:
    """Raise the terms of fleets whose workers have refused calls, while the Lease names this process. Never
    returns.

    Args:
        asked: Set when a worker has refused a call.
        fleets: The epochs of all fleets.
        confirm: Reads the Lease and returns whether it names this process. If it does not, leadership is lost
            and the process ends.
        requeue: Requests a reconcile of a fleet.
    """
    while True:
        await asked.wait()
        asked.clear()
        # Only these came before the read.
        refused = [(each, term) for each in fleets() if (term := each.refused) is not None]
        if not await confirm():
            continue
        for each, term in refused:
            each.raise_above(term)
            requeue(each.key, 0)
        if any(each.is_term_pending for each in fleets()):
            asked.set()
