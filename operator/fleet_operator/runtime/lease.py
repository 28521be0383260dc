"""Leader election on a coordination.k8s.io Lease.

kopf's peering is not used: of equal priorities everybody freezes, and nothing fences. A holder that
cannot renew within its deadline stops *being* the leader before another can become it: the
deadline is shorter than the lease, is counted on the monotonic clock from before the request, and
its end is the end of the process.

The term (`leaseTransitions`) grows with every new holder; workers refuse calls of older terms.

Source: Kubernetes coordination/v1 Lease; client-go tools/leaderelection for the timing rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Any

from fleet_operator.errors import Conflict, FleetError, NotFound
from fleet_operator.ports import Kube

logger = logging.getLogger(__name__)

DURATION_SECONDS = 15
DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
REQUEST_SECONDS = 4.0


class Lease:
    """One candidate for leadership. `identity` must be new for every process."""

    def __init__(self, kube: Kube, *, namespace: str, name: str, identity: str) -> None:
        self._kube = kube
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed_at = 0.0
        self.term = 0

    @property
    def held(self) -> bool:
        """Whether this process may act as the leader right now."""
        age = asyncio.get_running_loop().time() - self._renewed_at
        return self._renewed_at > 0 and age < DEADLINE_SECONDS

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        waiting = False
        while not await self._attempt(self._try_acquire):
            if not waiting:
                logger.info("another operator leads; standing by")
                waiting = True
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("leading, term %d", self.term)

    async def hold(self) -> None:
        """Renew until leadership is lost; returns at the deadline, whatever a request does."""
        while self.held:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._renewed_at + DEADLINE_SECONDS):
                    await self._attempt(self._try_renew)
                    if self.held:
                        await asyncio.sleep(RETRY_SECONDS)

    async def release(self) -> None:
        """Let a standby take over at once."""
        if not self.held:
            return
        self._renewed_at = 0.0
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                lease = await self._kube.get(self._path)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._kube.replace(self._path, lease)
        except (FleetError, TimeoutError) as error:
            logger.warning("the lease could not be released: %s", error)

    def outgrow(self, term: int) -> None:
        """Raise the own term above one that a worker has seen.

        A worker can have seen a newer term than the holder's only if the Lease object was deleted
        and made anew: whoever held a newer one would hold the Lease now.
        """
        if self.held and term >= self.term:
            logger.warning("a worker knows term %d; raising ours above it", term)
            self.term = term + 1

    async def _attempt(self, request: Any) -> bool:
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                done: bool = await request()
        except Conflict:
            return False
        except (FleetError, TimeoutError) as error:
            logger.warning("lease %s: %s", self._name, error or "no answer in time")
            return False
        if done:
            # Counted from before the request: what others see is never older than this.
            self._renewed_at = started
        return done

    async def _try_acquire(self) -> bool:
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            await self._make(transitions=1)
            self.term = 1
            return True
        spec = lease["spec"]
        # It may be held by this very process, which took it and did not hear the answer.
        by_another = spec.get("holderIdentity") not in {None, "", self._identity}
        if by_another and not self._has_expired(lease):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        lease["spec"] = self._spec(transitions=transitions, acquired=True)
        await self._kube.replace(self._path, lease)
        self.term = transitions
        return True

    async def _try_renew(self) -> bool:
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            # Somebody deleted it. Whoever makes it first leads; terms go on from here.
            await self._make(transitions=self.term)
            return True
        if lease["spec"].get("holderIdentity") != self._identity:
            logger.error("lease %s is held by %s", self._name, lease["spec"].get("holderIdentity"))
            self._renewed_at = 0.0
            return False
        lease["spec"] |= self._spec(transitions=self.term, acquired=False)
        await self._kube.replace(self._path, lease)
        return True

    async def _make(self, *, transitions: int) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(transitions=transitions, acquired=True),
        }
        await self._kube.create(self._collection, body)

    def _has_expired(self, lease: dict[str, Any]) -> bool:
        """Judged by our own clock from when we first saw this renewal: clocks differ."""
        seen_version, seen_at = self._seen
        version = lease["metadata"]["resourceVersion"]
        now = asyncio.get_running_loop().time()
        if version != seen_version:
            self._seen = (version, now)
            return False
        duration = float(lease["spec"].get("leaseDurationSeconds") or DURATION_SECONDS)
        return now - seen_at > duration

    def _spec(self, *, transitions: int, acquired: bool) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "leaseTransitions": transitions,
            "renewTime": now,
        }
        return spec | {"acquireTime": now} if acquired else spec
