"""Staging: a version is checked and its bytes are held while the worker goes on serving.

One stage runs at a time. A newer one takes over; the one under way stops at its next piece of
bytes. What was staged before is given up only when the new checkpoint has passed its checks, so a
refused one changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import Roots
from fleet_worker.core.labels import Labels
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason, Source, Staged, StageRequest
from fleet_worker.runtime.ports import Clock, Inspector
from fleet_worker.runtime.reference import Reference, open_fitting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weights:
    """A version whose checkpoint is open: staged, loading, or loaded."""

    version: str
    source: Source
    digest: str
    checkpoint: Checkpoint
    run_id: str | None = None
    in_memory: bool = False
    stage_seconds: float | None = None

    def as_state(self) -> Staged:
        """The staged version as the state document shows it."""
        return Staged(
            version=self.version,
            run_id=self.run_id,
            source=self.source,
            digest=self.digest,
            size_bytes=self.checkpoint.size_bytes,
            in_memory=self.in_memory,
        )

    def fulfils(self, request: StageRequest) -> bool:
        """Whether staging this again would change nothing."""
        return (
            self.version == request.version
            and self.run_id == request.run_id
            and self.source == request.source
            and request.digest in (None, self.digest)
        )


@dataclass(frozen=True, slots=True)
class Received:
    """Weights in the engine that came over a collective: no file could bring them back."""

    version: str
    source: None = None
    run_id: None = None
    digest: None = None
    checkpoint: None = None
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class StageRules:
    """What staging goes by.

    Fields:
        budget_bytes: How much may be held in memory at once.
    """

    roots: Roots
    reference: Reference
    inspector: Inspector
    budget_bytes: int


@dataclass(slots=True)
class Running:
    """A stage under way."""

    request: StageRequest
    started: float
    superseded: threading.Event
    task: asyncio.Task[None] | None = None

    def go_on(self) -> None:
        """Raise `Superseded` once a newer stage has taken over."""
        if self.superseded.is_set():
            raise Refusal(
                Reason.SUPERSEDED,
                f"a newer version took over while {self.request.version} was being staged",
            )


class Staging:
    """The staged version and the stage under way.

    Fields:
        staged: what a load may take.
        running: the stage under way, if any.
    """

    def __init__(
        self,
        rules: StageRules,
        labels: Labels,
        clock: Clock,
        make_room: Callable[[int], Awaitable[int]],
    ) -> None:
        """Make an empty one.

        Args:
            rules: What to go by.
            labels: What version names stand for.
            clock: Monotonic seconds.
            make_room: Given a size in bytes, frees what else is held and answers how much may be
                held; called in the event loop.
        """
        self.rules = rules
        self.staged: Weights | None = None
        self.running: Running | None = None
        self._labels = labels
        self._clock = clock
        self._make_room = make_room
        # Two: a superseded stage may be stuck in a slow file system for a while.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="rlfleet-stage")

    async def stage(self, request: StageRequest) -> None:
        """Stage a version; joins the same work under way, replaces other work.

        Errors:
            Refusal: why not; `Superseded` if a newer stage took over meanwhile.
        """
        running = self.running
        if running is None or not _same(running.request, request):
            if self.staged is not None and self.staged.fulfils(request):
                return
            if running is not None:
                running.superseded.set()
            running = Running(request, self._clock(), threading.Event())
            running.task = asyncio.get_running_loop().create_task(self._run(running))
            self.running = running
        if running.task is not None:
            # The caller may go away; the work goes on.
            await asyncio.shield(running.task)

    def take(self, version: str) -> Weights:
        """Hand the staged version over to a load.

        Errors:
            Refusal: `NotStaged`.
        """
        staged = self.check_staged(version)
        self.staged = None
        return staged

    def check_staged(self, version: str) -> Weights:
        """The staged version, if it is this one.

        Errors:
            Refusal: `NotStaged`.
        """
        if self.staged is None or self.staged.version != version:
            held = f"{self.staged.version} is" if self.staged is not None else "nothing is"
            raise Refusal(Reason.NOT_STAGED, f"{version} is not staged; {held} staged here")
        return self.staged

    def give_back(self, weights: Weights) -> bool:
        """Put a version back that a load did not use; whether there was room for it.

        There is none if a newer one is staged by now. Then the caller disposes of it.
        """
        if self.staged is None:
            self.staged = weights
        return self.staged is weights

    async def drop(self) -> None:
        """Forget what is staged, and give its memory back."""
        staged, self.staged = self.staged, None
        if staged is not None:
            # Freeing takes the kernel 0.2 s a GB, in which requests must not stand still.
            await self._in_thread(staged.checkpoint.close)

    async def _run(self, running: Running) -> None:
        try:
            weights = await self._prepare(running)
            try:
                running.go_on()  # or what is dropped is what the newer stage has staged by now
                await self.drop()
                running.go_on()
            except BaseException:
                await self._in_thread(weights.checkpoint.close)
                raise
            self.staged = weights
        finally:
            if self.running is running:
                self.running = None

    async def _prepare(self, running: Running) -> Weights:
        request, rules = running.request, self.rules
        checkpoint = await self._in_thread(
            open_fitting, request.source, rules.roots, rules.reference, rules.inspector
        )
        try:
            running.go_on()
            self._labels.check(request.version, checkpoint.identity)
            await self.drop()
            budget = await self._make_room(checkpoint.size_bytes)
            in_memory, digest = await self._in_thread(self._bring, running, checkpoint, budget)
        except BaseException:
            checkpoint.close()
            raise
        seconds = self._clock() - running.started
        return Weights(
            request.version,
            request.source,
            digest,
            checkpoint,
            run_id=request.run_id,
            in_memory=in_memory,
            stage_seconds=seconds,
        )

    def _bring(self, running: Running, checkpoint: Checkpoint, budget: int) -> tuple[bool, str]:
        """In a thread: hold the bytes, then judge the bytes that are held.

        Returns: whether they are held in memory, and their digest.
        """
        in_memory = self.rules.inspector.read(checkpoint, budget=budget, go_on=running.go_on)
        wanted = running.request.digest
        found = checkpoint.digest(running.go_on)
        if wanted not in (None, found):
            raise Refusal(
                Reason.DIGEST_MISMATCH, f"the files' digest is {found}, {wanted} was asked for"
            )
        checkpoint.check_same_on_disk(self.rules.roots)
        return in_memory, found

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _same(one: StageRequest, other: StageRequest) -> bool:
    return (one.version, one.run_id, one.source, one.digest) == (
        other.version,
        other.run_id,
        other.source,
        other.digest,
    )
