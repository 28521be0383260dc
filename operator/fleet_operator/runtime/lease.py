"""Leader election on a coordination.k8s.io Lease.

kopf's peering is not used: of equal priorities everybody freezes, and nothing fences. A holder that
cannot renew within its deadline stops *being* the leader before another can become it: the
deadline is shorter than the lease, is counted from before the request on a clock that also counts
suspended time, and its end is the end of the process.

The term (`leaseTransitions`) grows with every new holder; workers refuse calls of older terms. No
answer of a worker changes the Lease or its term: what a fleet needs above it stands in `epochs`.

Source: Kubernetes coordination/v1 Lease; client-go tools/leaderelection for the timing rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from fleet_operator.errors import Conflict, FleetError, NotFound
from fleet_operator.ports import Kube
from fleet_operator.runtime.clocks import boot_seconds
from fleet_worker.protocol import MAX_TERM

logger = logging.getLogger(__name__)

DURATION_SECONDS = 15
DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
REQUEST_SECONDS = 4.0


class Leadership(Protocol):
    """What the operator needs of its Lease, whatever thread renews it."""

    @property
    def held(self) -> bool:
        """Whether this process may act as the leader right now. Readable from every thread."""

    @property
    def term(self) -> int:
        """Number of this leadership; 0 before the first one."""

    async def acquire(self) -> None:
        """Wait until this process is the leader."""

    async def hold(self) -> None:
        """Renew until leadership is lost."""

    async def release(self) -> None:
        """Let a standby take over at once."""

    async def confirm(self) -> bool:
        """Read the Lease again. Returns: whether it names this process, read after this call."""


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

    @property
    def held(self) -> bool:
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
                logger.info("another operator leads; standing by")
                waiting = True
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("leading, term %d", self.term)

    async def hold(self) -> None:
        """Renew until leadership is lost; returns at the deadline, whatever a request does."""
        try:
            while self.held:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._left_seconds()):
                        await self._renew()
                        if self.held:
                            await self._rest()
        finally:
            self._answer(confirmed=False)

    async def confirm(self) -> bool:
        """Read the Lease again, as part of the renewals in `hold`.

        A worker has refused a call as older than one that it has obeyed. Either another process
        leads by now, and this one must end; or the Lease was deleted and made again, or a worker
        says what is not so. The Lease tells which, if it is read after the refusal.

        Returns: whether the Lease names this process, read after this call. Waits while the API
        server does not answer, at most until leadership is lost.
        """
        if not self.held:
            return False
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self._asked.set()
        return await question

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

    def _left_seconds(self) -> float:
        """Seconds until leadership ends by itself; not positive if it has ended."""
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
        """Wait until the next renewal is due, or is asked for."""
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
            return await self._make_after_its_holder()
        self._missing_since = None
        spec = lease["spec"]
        # It may be held by this very process, which took it and did not hear the answer.
        by_another = spec.get("holderIdentity") not in {None, "", self._identity}
        self._last_term = self._next_term(spec) - 1
        if by_another and not self._has_expired(lease):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        if transitions > MAX_TERM:
            # Not counted by us. Begun again, it is what a Lease that was deleted is.
            logger.warning(
                "lease %s counts %d transitions; beginning at 1", self._name, transitions
            )
            transitions = 1
        lease["spec"] = self._spec(transitions=transitions, acquired=True)
        await self._kube.replace(self._path, lease)
        self._term = transitions
        return True

    async def _make_after_its_holder(self) -> bool:
        """Make a Lease that is not there.

        One that was there is left to its holder for as long as that may lead: it makes it again
        at its next renewal, and two would lead until then.
        """
        now = self._clock()
        self._missing_since = now if self._missing_since is None else self._missing_since
        if self._seen[0] and now - self._missing_since < DEADLINE_SECONDS:
            return False
        await self._make(transitions=self._last_term + 1)
        self._term = self._last_term + 1
        return True

    def _next_term(self, spec: dict[str, Any]) -> int:
        """The term of the next holder. A count beyond every term is not ours: begun again, it is
        what a Lease that was deleted is.
        """
        transitions = int(spec.get("leaseTransitions") or 0)
        return transitions + 1 if 0 <= transitions < MAX_TERM else 1

    async def _try_renew(self) -> bool:
        try:
            lease = await self._kube.get(self._path)
        except NotFound:
            # Somebody deleted it. Whoever makes it first leads; terms go on from here.
            await self._make(transitions=self._term)
            return True
        if lease["spec"].get("holderIdentity") != self._identity:
            logger.error("lease %s is held by %s", self._name, lease["spec"].get("holderIdentity"))
            self._renewed_at = 0.0
            return False
        lease["spec"] |= self._spec(transitions=self._term, acquired=False)
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
