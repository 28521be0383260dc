"""Token, port and epoch of the calls to a fleet's workers, and how often their states are read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from functools import partial

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.observed import FleetObserved
from fleet_operator.runtime.dispatch import Caller, Dispatcher
from fleet_operator.runtime.pod_informer import PodInformer
from fleet_operator.runtime.session import FleetSession
from fleet_operator.runtime.store import FleetRecord
from fleet_operator.runtime.worker_cache import WorkerCache

BUSY_SECONDS = 1.0
"""The maximum age of an answer, and the time to the next reconcile, while work is in progress."""
TOKEN = "the admin token"  # noqa: S105 - the name of a part
READS_PER_SECOND = 2000
"""Limit for the reads of one fleet. A larger fleet is read less often than every `BUSY_SECONDS`: 10,000
reads a second would leave no processor time for the calls."""
READS_PER_SECOND_AT_REST = 200
_EARLY = 0.9
"""The share of the maximum age after which a state is read again."""


class Callers:
    """Callers of all fleets.

    `resync_seconds`: the maximum age of an answer while nothing is in progress.
    """

    def __init__(
        self,
        *,
        calls: Dispatcher,
        pods: PodInformer,
        worker_cache: WorkerCache,
        resync_seconds: float,
    ) -> None:
        self._calls = calls
        self._pods = pods
        self._worker_cache = worker_cache
        self._resync_seconds = resync_seconds

    async def read(
        self, session: FleetSession, record: FleetRecord, spec: FleetSpec
    ) -> Caller | None:
        """The caller of a fleet, with its token and the states read that are due (`ask`); None without a token."""
        if session.token.is_due:
            (namespace, name), uid, generation = session.key, record.uid, record.generation
            bare = FleetObserved(
                name=name, namespace=namespace, uid=uid, generation=generation, spec=spec
            )
            await session.writes.run({TOKEN: partial(session.token.read, bare)})
        caller = self.known(session, spec)
        if caller is not None:
            await self.ask(caller, external=spec.is_external)
        return caller

    @staticmethod
    def known(session: FleetSession, spec: FleetSpec) -> Caller | None:
        """The caller of a fleet with the last token; None without one."""
        if session.token.last is None:
            return None
        return Caller(
            session=session,
            token=session.token.last,
            admin_port=spec.serving.admin_port,
            epoch=session.epochs.last,
            adapters=spec.adapters.max,
        )

    async def ask(self, caller: Caller, *, external: bool) -> None:
        """Read the states that a decision should not be made without, and wait a short time for them.

        A known worker is not waited for: its answer changes little within `BUSY_SECONDS`. Nor is a
        silent one.

        `external`: a trainer updates the workers, usually all of them. If the weights of one have
        changed, all are read: by older answers it would seem the only one with these weights.
        """
        pods = self._pods.pods_of(caller.session.key)
        unknown = [p for p in pods if self._worker_cache.is_unknown(p)]
        if external:
            unknown += self._worker_cache.outdated(pods)
        if unknown:
            await self._calls.ask(caller, unknown)

    async def tell(self, caller: Caller) -> None:
        """Tell the workers what they have not heard yet, and wait a short time for them.

        Call it before the calls of a decision: a worker judges the weights that it loads by the versions that it
        knows, and would refuse requests with newer ones. It also takes signed calls in the order of their numbers
        only.
        """
        wanted = caller.wanted
        if wanted is None:
            return
        pods = self._pods.pods_of(caller.session.key)
        hear = [
            p
            for p in pods
            if (wanted.wanted or self._worker_cache.hears(p.uid))
            and not self._worker_cache.was_told(p, caller.news)
        ]
        if hear:
            await self._calls.ask(caller, hear)

    async def poll(
        self, caller: Caller, *, often: Collection[str], at_most_seconds: float = math.inf
    ) -> None:
        """Begin to read the states that are too old, without waiting for the answers. A change requests a
        reconcile.

        Call it after the calls of a decision: their answers tell the state, too.

        `often`: uids of workers whose answers are at most `BUSY_SECONDS` old. Answers of others are
        at most as old as a resync. In large fleets the limits of reads make both older.
        `at_most_seconds`: the maximum age of every answer.
        """
        now = asyncio.get_running_loop().time()
        busy_seconds = max(BUSY_SECONDS, len(often) / READS_PER_SECOND)
        pods = self._pods.pods_of(caller.session.key)
        rest_seconds = max(self._resync_seconds, len(pods) / READS_PER_SECOND_AT_REST)
        rest_seconds = min(rest_seconds, at_most_seconds)
        ages = {True: busy_seconds * _EARLY, False: rest_seconds * _EARLY}
        due = [
            p
            for p in pods
            if self._worker_cache.is_due(p, now, max_age_seconds=ages[p.uid in often])
        ]
        if due:
            await self._calls.ask(caller, due, wait_seconds=0)
