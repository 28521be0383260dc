"""Leader election on a coordination.k8s.io Lease.

kopf's peering is not used: peers of equal priority all freeze, and it fences nothing.

A holder that cannot renew within its deadline stops being the leader before another process can take
over. The deadline is shorter than the lease. It counts from before the request, on a clock that also
counts suspended time, and the process ends with it.

The term (`leaseTransitions`) grows with every new holder, and workers refuse calls of older terms. No
answer of a worker changes the Lease or its term: `epochs` keeps a higher term per fleet.

Source: Kubernetes coordination/v1 Lease; client-go tools/leaderelection for the timing rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fleet_operator.errors import Conflict, FleetError, NotFound, Terminal
from fleet_operator.ports import Kube
from fleet_worker.protocol import MAX_TERM

logger = logging.getLogger(__name__)

DURATION_SECONDS = 15
DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
REQUEST_SECONDS = 4.0


def boot_seconds() -> float:
    """Seconds since the host was booted, including the time in which it was suspended.

    The event loop's CLOCK_MONOTONIC stops while a virtual machine is paused or a host sleeps. By that
    clock, an expired Lease would still look fresh. Source: clock_gettime(2).
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """One candidate for leadership. `identity` must be new for every process.

    `clock`: seconds; it must go on while the host is suspended.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed_at = 0.0
        self._questions: list[asyncio.Future[bool]] = []
        self._asked = asyncio.Event()
        self._missing_since: float | None = None
        self._last_term = 0
        self._term = 0
        self._written: dict[str, Any] | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader right now. Readable from every thread."""
        return self._left_seconds() > 0

    @property
    def term(self) -> int:
        """Number of this leadership; 0 before the first one."""
        return self._term

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        waiting = False
        while not await self._attempt(self._try_acquire):
            if not waiting:
                logger.info("another operator process leads; this one is a standby")
                waiting = True
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("this process is the leader, term %d", self.term)

    async def keep_renewing(self) -> None:
        """Renew until leadership is lost. Returns at the deadline, even if a request hangs."""
        try:
            while self.is_leader:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._left_seconds()):
                        await self._renew()
                        if self.is_leader:
                            await self._rest()
        finally:
            self._answer(confirmed=False)

    async def confirm(self) -> bool:
        """Renew once more, as part of the renewals in `keep_renewing`. A renewal reads the Lease, or
        replaces it at the resourceVersion that this process knows.

        Call it after a worker has refused a call as older than one that it has obeyed. Another process
        may lead now, so that this one must end. Or the Lease was deleted and recreated, or the worker's
        answer is wrong. Only a renewal after the refusal shows which.

        Returns: whether the Lease names this process, seen after this call. Waits while the API
        server does not answer, at most until leadership is lost.
        """
        if not self.is_leader:
            return False
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self._asked.set()
        return await question

    async def release(self) -> None:
        """Release the Lease, so that a standby takes over at once."""
        if not self.is_leader:
            return
        self._renewed_at = 0.0
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                lease = await self._kube.get(self._path)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._kube.replace(self._path, lease)
        except (FleetError, TimeoutError) as error:
            logger.warning(
                "the Lease could not be released, so a standby waits until it expires: %s",
                _message(error),
            )

    def _left_seconds(self) -> float:
        """Seconds until leadership ends without another renewal; zero or less if it has ended."""
        renewed_at = self._renewed_at
        return renewed_at + DEADLINE_SECONDS - self._clock() if renewed_at > 0 else 0.0

    async def _renew(self) -> None:
        """Renew once, and answer the questions that came before the Lease was read."""
        waiting, self._questions = self._questions, []
        self._asked.clear()
        try:
            done = await self._attempt(self._try_renew)
        finally:
            self._questions = [*waiting, *self._questions]
        if done:
            for question in waiting:
                self._questions.remove(question)
                if not question.done():
                    question.set_result(True)

    async def _rest(self) -> None:
        """Wait until the next renewal is due or requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._asked.wait()

    def _answer(self, *, confirmed: bool) -> None:
        waiting, self._questions = self._questions, []
        for question in waiting:
            if not question.done():
                question.set_result(confirmed)

    async def _attempt(self, request: Any) -> bool:
        started = self._clock()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                done: bool = await request()
        except Conflict:
            return False
        except (FleetError, TimeoutError) as error:
            logger.warning("Lease %s: %s", self._name, _message(error))
            return False
        if done:
            # Counted from before the request: other processes never see an older renewal.
            self._renewed_at = started
        return done

    async def _try_acquire(self) -> bool:
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            return await self._make_after_its_holder()
        self._missing_since = None
        spec = lease["spec"]
        # This process may hold it already, if the answer to its request was lost.
        by_another = spec.get("holderIdentity") not in {None, "", self._identity}
        self._last_term = self._next_term(spec) - 1
        if by_another and not self._has_expired(lease):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        if transitions > MAX_TERM:
            # No operator counts this far. Beginning at 1 equals a Lease that was deleted.
            logger.warning(
                "Lease %s has %d leaseTransitions, beyond the limit; beginning at 1",
                self._name,
                transitions,
            )
            transitions = 1
        lease["spec"] = self._spec(transitions=transitions, acquired=True)
        await self._replace(lease)
        self._term = transitions
        return True

    async def _make_after_its_holder(self) -> bool:
        """Create a missing Lease, unless its last holder may still lead.

        The holder recreates a deleted Lease at its next renewal. Until its deadline has passed, a
        second process that creates it would lead at the same time.
        """
        now = self._clock()
        self._missing_since = now if self._missing_since is None else self._missing_since
        if self._seen[0] and now - self._missing_since < DEADLINE_SECONDS:
            return False
        await self._make(transitions=self._last_term + 1)
        self._term = self._last_term + 1
        return True

    def _next_term(self, spec: dict[str, Any]) -> int:
        """The term of the next holder. A count beyond the limit begins again at 1, as after a deletion."""
        transitions = int(spec.get("leaseTransitions") or 0)
        return transitions + 1 if 0 <= transitions < MAX_TERM else 1

    async def _try_renew(self) -> bool:
        """Renew with one request: replace the Lease as this process wrote it last. The API server refuses
        that if the Lease has changed. Only then does this process read it. This halves the work of a
        slow API server before leadership is lost. Source: client-go, `tryAcquireOrRenew`.
        """
        written, self._written = self._written, None
        if written is not None:
            with contextlib.suppress(Conflict, NotFound, Terminal):
                await self._replace_with_renewed(written)
                return True
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            # It was deleted. The first process to recreate it leads, and terms continue from here.
            await self._make(transitions=self._term)
            return True
        if lease["spec"].get("holderIdentity") != self._identity:
            logger.error("Lease %s is held by %s", self._name, lease["spec"].get("holderIdentity"))
            self._renewed_at = 0.0
            return False
        await self._replace_with_renewed(lease)
        return True

    async def _replace_with_renewed(self, lease: dict[str, Any]) -> None:
        lease["spec"] |= self._spec(transitions=self._term, acquired=False)
        await self._replace(lease)

    async def _replace(self, lease: dict[str, Any]) -> None:
        self._written = await self._kube.replace(self._path, lease)

    async def _make(self, *, transitions: int) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(transitions=transitions, acquired=True),
        }
        self._written = await self._kube.create(self._collection, body)

    def _has_expired(self, lease: dict[str, Any]) -> bool:
        """Whether the holder has not renewed for the lease's duration, by the clock of this process."""
        seen_version, seen_at = self._seen
        version = lease["metadata"]["resourceVersion"]
        now = self._clock()
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


def _message(error: Exception) -> str:
    """The message of an error. A timeout has none of its own."""
    return str(error) or "no answer in time"
