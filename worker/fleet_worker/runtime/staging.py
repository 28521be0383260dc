"""Staging: a version is checked and its bytes are held while the worker goes on serving.

One stage runs at a time. A newer one takes over; the one under way stops at its next piece of
bytes. What was staged before is given up only when the new checkpoint has passed its checks, so a
refused one changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import FileState, Roots
from fleet_worker.adapters.settling import states_of
from fleet_worker.core.digests import check_digest
from fleet_worker.core.labels import Label, Labels
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.refused_sources import RefusedSources
from fleet_worker.core.weight_names import WeightName, described, short_digest
from fleet_worker.protocol import Reason, Source, Staged, StageRequest
from fleet_worker.runtime.ports import Clock, Inspector
from fleet_worker.runtime.reference import Reference, directory_of, open_fitting
from fleet_worker.runtime.store_threads import SILENCE_SECONDS, Pulse, StoreThreads, leave

T = TypeVar("T")

# Scopes of versions besides runs and directories.
_COLLECTIVE = "a collective"
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Weights:
    """A version whose checkpoint is open: staged, loading, or loaded.

    Fields:
        source: where the bytes are; a revision of a repository is its commit.
        by_directory: a trainer named the directory and no run: another directory is another run.
    """

    version: str
    source: Source
    digest: str
    checkpoint: Checkpoint
    run_id: str | None = None
    in_memory: bool = False
    stage_seconds: float | None = None
    by_directory: bool = False

    @property
    def name(self) -> WeightName:
        """What spans call them."""
        return WeightName(self.version, self.run_id, self.mark)

    @property
    def mark(self) -> str:
        """What tells them from all other weights of their version."""
        return short_digest(self.digest)

    @property
    def identity(self) -> str:
        """What no other bytes have."""
        return self.digest

    @property
    def origin(self) -> str:
        """Where they come from, in words."""
        return self.checkpoint.path

    @property
    def labels(self) -> tuple[Label, ...]:
        """What no other bytes may be called."""
        directory = self.checkpoint.path if self.by_directory else None
        own = Label(self.version, self.run_id if self.run_id is not None else directory)
        return own, Label(self.version, _COLLECTIVE)

    @property
    def stands_for(self) -> tuple[Label, ...]:
        """What they keep other bytes from being called, once they are in the engine."""
        # Whoever names directories later must find that of these weights.
        return (
            self.labels[0],
            Label(self.version, self.checkpoint.path),
            Label(self.version, _FILES),
        )

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
    """Weights in the engine that came over a collective: no file could bring them back.

    Fields:
        mark: what tells them from all other weights of their version.
    """

    version: str
    mark: str
    source: None = None
    run_id: None = None
    digest: None = None
    checkpoint: None = None
    in_memory: bool = False

    @property
    def name(self) -> WeightName:
        """What spans call them."""
        return WeightName(self.version)

    @property
    def identity(self) -> str:
        """What no other weights have."""
        return self.mark

    @property
    def origin(self) -> str:
        """Where they come from, in words."""
        return _COLLECTIVE

    @property
    def labels(self) -> tuple[Label, ...]:
        """What no other weights may be called: without a digest, nothing else tells them apart."""
        return Label(self.version, _COLLECTIVE), Label(self.version, _FILES)

    @property
    def stands_for(self) -> tuple[Label, ...]:
        """What they keep other weights from being called, once they are in the engine."""
        return (Label(self.version, _COLLECTIVE),)


class Named(Protocol):
    """A request that names weights; what it leaves out, it leaves open."""

    @property
    def version(self) -> str:
        """Their version."""

    @property
    def run_id(self) -> str | None:
        """The run that the version belongs to."""

    @property
    def digest(self) -> str | None:
        """Of their bytes."""


def is_named_by(weights: Weights | Received, wanted: Named) -> bool:
    """Whether a request means these weights."""
    return (
        weights.version == wanted.version
        and wanted.run_id in (None, weights.run_id)
        and wanted.digest in (None, weights.digest)
    )


def check_labels(labels: Labels, weights: Weights | Received) -> None:
    """Make sure that no other weights have been called as these would be.

    Errors:
        Refusal: `VersionReused`.
    """
    for label in weights.labels:
        labels.check(label, weights.identity, weights.origin)


def in_words(weights: Named) -> str:
    """Which weights a request means, or a worker has."""
    return described(weights.version, weights.run_id, weights.digest)


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
    """A stage under way.

    Fields:
        superseded: set once a newer stage has taken over; threads look at it.
        unwanted: done at the same moment; the event loop waits for it.
        checkpoint: what is being read.
    """

    request: StageRequest
    started: float
    unwanted: asyncio.Future[None]
    by_directory: bool = False
    superseded: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=Pulse)
    checkpoint: Checkpoint | None = None
    task: asyncio.Task[Weights] = field(init=False)

    def go_on(self) -> None:
        """Note that the store answers; raise `Superseded` once a newer stage has taken over."""
        self.pulse.beat()
        if self.superseded.is_set():
            raise Refusal(
                Reason.SUPERSEDED,
                f"a newer version took over while {self.request.version} was being staged",
            )

    def supersede(self) -> None:
        """A newer stage takes over: what is read is not waited for any more."""
        self.superseded.set()
        if not self.unwanted.done():
            self.unwanted.set_result(None)


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
        if running is None or not _same(running.request, request):
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


def _same(one: StageRequest, other: StageRequest) -> bool:
    return (one.version, one.run_id, one.source, one.digest) == (
        other.version,
        other.run_id,
        other.source,
        other.digest,
    )
