"""Staging: a version is checked and its bytes are held while the worker goes on serving.

One stage runs at a time. A newer one takes over; the one under way stops at its next piece of
bytes. What was staged before is given up only when the new checkpoint has passed its checks, so a
refused one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import FileState, Roots
from fleet_worker.adapters.settling import states_of
from fleet_worker.core.digests import check_digest
from fleet_worker.core.labels import Labels
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.refused_sources import RefusedSources
from fleet_worker.protocol import Named, Reason, Source, StageRequest
from fleet_worker.runtime.ports import Clock, Inspector
from fleet_worker.runtime.reference import Reference, directory_of, open_fitting
from fleet_worker.runtime.stage_run import Running
from fleet_worker.runtime.store_threads import SILENCE_SECONDS, StoreThreads, leave
from fleet_worker.runtime.weights import Weights, check_labels, in_words, is_named_by

T = TypeVar("T")


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


class Staging:
    """The staged version and the stage under way.

    Fields:
        staged: what a load may take.
        running: the stage under way, if any.
        threads: for everything that a file system may keep waiting.
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
        self._overtaken: Checkpoint | None = None
        self._refused = RefusedSources()
        self.threads = StoreThreads()
        self.silence_seconds = SILENCE_SECONDS

    async def stage(self, request: StageRequest, *, by_directory: bool = False) -> Weights:
        """Stage a version; joins the same work under way, replaces other work.

        Args:
            request: What; a repository by its commit.
            by_directory: See `Weights`.

        Returns:
            What is staged.

        Errors:
            Refusal: why not; `Superseded` if a newer stage took over meanwhile.
        """
        running = self.running
        if running is None or not running.is_for(request):
            if self.staged is not None and self.staged.fulfils(request):
                return self.staged
            if running is not None:
                running.supersede()
                self._overtaken = running.checkpoint
            loop = asyncio.get_running_loop()
            running = Running(request, self._clock(), loop.create_future(), by_directory)
            running.task = loop.create_task(self._run(running))
            self.running = running
        # The caller may go away; the work goes on.
        return await asyncio.shield(running.task)

    def take(self, wanted: Named) -> Weights:
        """Hand the staged version over to a load.

        Errors:
            Refusal: `NotStaged`.
        """
        staged = self.check_staged(wanted)
        self.staged = None
        return staged

    def check_staged(self, wanted: Named) -> Weights:
        """The staged version, if it is the one that a request names.

        Errors:
            Refusal: `NotStaged`.
        """
        if self.staged is None or not is_named_by(self.staged, wanted):
            held = in_words(self.staged) if self.staged is not None else "nothing"
            raise Refusal(
                Reason.NOT_STAGED,
                f"{in_words(wanted)} is not staged; {held} is staged here. Stage it first",
            )
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
            await self._free(staged.checkpoint)

    async def _free(self, checkpoint: Checkpoint) -> None:
        """Give memory back, and files up.

        Freeing takes the kernel 0.2 s a GB, in which requests must not stand still. Memory is
        waited for, because the next version needs it; files are not, because closing one may ask
        its store.
        """
        await asyncio.to_thread(checkpoint.release)
        leave(checkpoint.close)

    async def _run(self, running: Running) -> Weights:
        try:
            weights = await self._prepare(running)
            try:
                running.go_on()  # or what is dropped is what the newer stage has staged by now
                await self.drop()
                running.go_on()
            except BaseException:
                await self._free(weights.checkpoint)
                raise
            self.staged = weights
            return weights
        finally:
            if self.running is running:
                self.running = None

    async def _prepare(self, running: Running) -> Weights:
        """Check a version and hold its bytes, unless the same files were refused before."""
        request, rules = running.request, self.rules
        asked = (str(request.source), request.digest)
        seen = await self._wait_for(running, partial(_look, request.source, rules.roots))
        self._refused.check(asked, seen)
        try:
            return await self._read(running)
        except Refusal as refusal:
            if seen:
                raise self._refused.note(asked, seen, refusal) from refusal
            raise

    async def _read(self, running: Running) -> Weights:
        request, rules = running.request, self.rules
        opening = partial(
            open_fitting, request.source, rules.roots, rules.reference, rules.inspector
        )
        checkpoint = await self._wait_for(running, opening, late=Checkpoint.close)
        running.checkpoint = checkpoint
        try:
            running.go_on()
            await self.drop()
            if self._overtaken is not None:
                # Its thread may be stuck in a read for ever; its memory is needed now.
                await asyncio.to_thread(self._overtaken.release)
            budget = await self._make_room(checkpoint.size_bytes)
        except BaseException:
            await self._free(checkpoint)
            raise
        bringing = partial(self._bring, running, checkpoint, budget)
        try:
            in_memory, digest = await self._wait_for(
                running, bringing, late=lambda _: checkpoint.close()
            )
        except BaseException:
            # The files belong to the thread, which may read them still.
            await asyncio.to_thread(checkpoint.release)
            raise
        weights = Weights(
            request.version,
            request.source,
            digest,
            checkpoint,
            run_id=request.run_id,
            in_memory=in_memory,
            by_directory=running.by_directory,
        )
        try:
            check_labels(self._labels, weights)
        except BaseException:
            await self._free(checkpoint)
            raise
        return replace(weights, stage_seconds=self._clock() - running.started)

    def _bring(self, running: Running, checkpoint: Checkpoint, budget: int) -> tuple[bool, str]:
        """In a thread: read the bytes and judge them; the checkpoint is closed if they are refused.

        Returns: whether they are held in memory, and their digest.
        """
        # A digest says more than any look at the files.
        trusted = running.request.digest is not None
        try:
            if not trusted:
                self.rules.reference.check_written(checkpoint)
            in_memory = self.rules.inspector.read(checkpoint, budget=budget, go_on=running.go_on)
            found = checkpoint.digest(running.go_on)
            check_digest(running.request.digest, found, "the files")
            if not trusted:
                self.rules.reference.check_filled(checkpoint)
            checkpoint.check_same_on_disk(self.rules.roots)
            running.go_on()
        except BaseException:
            checkpoint.close()
            raise
        return in_memory, found

    async def _wait_for(
        self,
        running: Running,
        work: Callable[[], T],
        *,
        late: Callable[[T], object] = lambda _: None,
    ) -> T:
        running.pulse.beat()
        source = running.request.source
        store = (
            self.rules.roots.root_of(source.path) if source.path else "of the Hugging Face cache"
        )
        try:
            return await self.threads.run(
                work,
                store=store,
                within_seconds=self.silence_seconds,
                pulse=running.pulse,
                until=running.unwanted,
                late=late,
            )
        except Refusal:
            running.go_on()  # it says which version was overtaken
            running.superseded.set()  # what was given up ends with its next answer
            raise


def _look(source: Source, roots: Roots) -> frozenset[tuple[str, FileState | None]]:
    """What the files of a source look like; empty if it cannot be opened, which is said later."""
    try:
        return states_of(directory_of(source), roots)
    except Refusal:
        return frozenset()
