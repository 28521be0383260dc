"""Staging: the worker checks a version and reads its bytes into memory, and keeps serving.

One stage runs at a time. A newer one takes over, and the running one stops at its next piece of
bytes. The previous staged version is dropped only after the new checkpoint has passed the checks
of its files, so a version that these checks refuse changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fleet_worker.checkpoint import delta_chain
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, HeldBase
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.checkpoint.keeping import no_room
from fleet_worker.checkpoint.peer_files import unreadable
from fleet_worker.checkpoint.peers import Peers
from fleet_worker.checkpoint.reference import (
    StageRules,
    open_fitting,
    open_fitting_at,
    read_accepted,
)
from fleet_worker.checkpoint.refused_peers import OF_PEERS, RefusedPeers
from fleet_worker.checkpoint.refused_sources import RefusedSources, retried_if
from fleet_worker.checkpoint.remarks import NOT_IN_MEMORY
from fleet_worker.checkpoint.sources import check_same_source, states_in, store_of
from fleet_worker.checkpoint.stager_messages import Place
from fleet_worker.checkpoint.store_threads import SILENCE_SECONDS, StoreThreads, leave
from fleet_worker.engine.port import Clock
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.stage_run import Running
from fleet_worker.lifecycle.weights import Weights, check_labels, description_of, is_named_by
from fleet_worker.protocol import Named, Reason, StageRequest

T = TypeVar("T")
_PEERS_RETRY_SECONDS = 1.0


class Staging:
    """The staged version and the running stage.

    Fields:
        staged: the version that a load can take.
        running: the running stage, if any.
        threads: the threads for work on file systems.
    """

    def __init__(
        self,
        rules: StageRules,
        labels: Labels,
        clock: Clock,
        make_room: Callable[[int], Awaitable[int]],
        bases: Callable[[], Sequence[HeldBase]] = tuple,
        note_staged: Callable[[Weights], None] = lambda _: None,
        peers: Peers | None = None,
    ) -> None:
        """Start without a staged version.

        Args:
            rules: Limits and checks.
            labels: The labels that belong to other weights.
            clock: Monotonic seconds.
            make_room: Frees memory for a number of bytes, and returns how many bytes are
                available; called in the event loop.
            bases: Returns duplicates of the weights that the worker holds, which a delta may change;
                called in the event loop.
            note_staged: Called with each version that was read.
            peers: Serves versions to other workers; None if this worker neither serves nor reads them.
        """
        self.rules = rules
        self.staged: Weights | None = None
        self.running: Running | None = None
        self._labels = labels
        self._clock = clock
        self._make_room = make_room
        self._bases = bases
        self._note_staged = note_staged
        self.peers = peers
        self.refused_peers = RefusedPeers()
        self._overtaken: Checkpoint | None = None
        self._refused = RefusedSources()
        self.threads = StoreThreads()
        self.silence_seconds = SILENCE_SECONDS

    async def stage(self, request: StageRequest, *, by_directory: bool = False) -> Weights:
        """Stage a version. Joins a running stage of the same version, and supersedes any other.

        Args:
            request: Version and source; a repository is named by its commit.
            by_directory: See `Weights`.

        Returns:
            The staged version.

        Errors:
            Refusal: The reason; `Superseded` if a newer stage took over meanwhile.
        """
        if (staged := await self._staged_for(request)) is not None:
            check_labels(self._labels, staged)
            return staged
        running = self.running
        if running is None or not running.is_for(request):
            if running is not None:
                running.supersede()
                self._overtaken = running.checkpoint
            loop = asyncio.get_running_loop()
            running = Running(request, self._clock(), loop.create_future(), by_directory)
            running.task = loop.create_task(self._run(running))
            self.running = running
        # The stage continues if the caller disconnects.
        return await asyncio.shield(running.task)

    async def _staged_for(self, request: StageRequest) -> Weights | None:
        """The staged version, if it is still that of a request and no stage for the request runs."""
        running, staged = self.running, self.staged
        if running is not None and running.is_for(request):
            return None
        if staged is None or not staged.fulfils(request):
            return None
        return staged if await self.is_unchanged(staged, request) else None

    async def is_unchanged(self, weights: Weights, request: StageRequest) -> bool:
        """Whether weights that fulfil a request are also what a worker would read for it now.

        A digest names their bytes. Without one the files must be the same. If the worker cannot find
        out, the answer is no.
        """
        if request.digest is not None:
            return True
        try:
            await self.threads.run(
                partial(check_same_source, weights.source, weights.checkpoint, self.rules.roots),
                store=self.rules.roots.root_of(weights.checkpoint.path),
            )
        except Refusal:
            return False
        return True

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
            Refusal: `NotStaged`; `VersionReused` if its label has other weights by now.
        """
        if self.staged is None or not is_named_by(self.staged, wanted):
            staged = description_of(self.staged) if self.staged is not None else "nothing"
            raise Refusal(
                Reason.NOT_STAGED,
                f"{description_of(wanted)} is not staged; {staged} is staged here. Stage it first",
            )
        check_labels(self._labels, self.staged)
        return self.staged

    def give_back(self, weights: Weights) -> bool:
        """Stage a version again that a load did not use; returns whether it is staged.

        It is not if a newer version is staged by now. The caller then disposes of it.
        """
        if self.staged is None:
            self.staged = weights
        return self.staged is weights

    async def drop(self) -> None:
        """Drop the staged version and free its memory."""
        staged, self.staged = self.staged, None
        if staged is not None:
            await self._free(staged.checkpoint)

    async def _free(self, checkpoint: Checkpoint) -> None:
        """Free the memory of a checkpoint and close its files.

        Freeing takes the kernel 0.2 s per GB, so it runs in a thread. The next version needs the
        memory, so this waits for it. It does not wait for the files: their store may hang.
        """
        await asyncio.to_thread(checkpoint.release)
        leave(checkpoint.close)

    async def _run(self, running: Running) -> Weights:
        try:
            weights = await self._prepare(running)
            try:
                running.check_cancelled()  # a newer stage may have staged its version by now
                await self.drop()
                running.check_cancelled()
            except BaseException:
                await self._free(weights.checkpoint)
                raise
            self.staged = weights
            self._note_staged(weights)
            return weights
        finally:
            if self.running is running:
                self.running = None

    async def _prepare(self, running: Running) -> Weights:
        """Check a version and read its bytes, unless the same files were refused before."""
        request, rules = running.request, self.rules
        if self.peers is not None and request.peers and request.digest is not None:
            weights = await self._read_from_peers(running, self.peers, request.digest)
            if weights is not None:
                return weights
        seen = await self._wait_for(running, partial(states_in, request.source, rules.roots))
        source, by_directory = str(request.source), running.by_directory
        asked = (source, request.digest, request.version, request.run_id, by_directory)
        with self._refused.remembering(asked, seen):
            return await self._read(running)

    async def _read_from_peers(self, running: Running, peers: Peers, digest: str) -> Weights | None:
        """Read a version from the peers that the call names, one after the other.

        Returns: the version; None if no memory has room for it, so that it must be read from the store.

        Errors:
            Refusal: `PeerUnreadable`; none of them has sent the right bytes.
        """
        request = running.request
        for peer in request.peers:
            place = peers.place_of(peer, digest)
            if place is None or self.refused_peers.has(peer, digest):
                continue
            running.reads_from = peer.pod_uid
            store = f"peer://{peer.host}:{peer.port}"
            try:
                return await self._read_from_peer(running, place, store)
            except Refusal as refusal:
                if refusal.reason is Reason.NOT_AVAILABLE:
                    return None
                if refusal.reason is Reason.SOURCE_UNREADABLE:  # it is silent, or ends the stager
                    refusal = unreadable(place, f"was not read: {refusal.message}")
                if refusal.reason not in OF_PEERS:
                    raise
                self.refused_peers.note(peer, digest, refusal)
            finally:
                running.reads_from = None
        why = next((f": {each.message}" for each in self.refused_peers.all), "")
        raise Refusal(
            Reason.PEER_UNREADABLE,
            f"no peer of the call sends version {request.version}{why}",
            retry_after_seconds=_PEERS_RETRY_SECONDS,
        )

    async def _read_from_peer(self, running: Running, place: Place, store: str) -> Weights:
        """Read a version from a peer: its delta, if the worker has its base and room for both, or else the whole."""
        opening = partial(open_fitting_at, place, str(running.request.source), self.rules)
        running.checkpoint = checkpoint = await self._opened(running, opening, peer=store)
        try:
            return await self._read_opened(running, checkpoint, peer=store)
        except Refusal as refusal:
            if refusal.reason is not Reason.NOT_AVAILABLE or checkpoint.changed is None:
                raise
        whole = partial(_without, opening)
        running.checkpoint = checkpoint = await self._opened(running, whole, peer=store)
        return await self._read_opened(running, checkpoint, peer=store)

    async def _read(self, running: Running) -> Weights:
        opening = partial(open_fitting, running.request.source, self.rules)
        running.checkpoint = checkpoint = await self._opened(running, opening)
        with retried_if(checkpoint.changed is not None):
            return await self._read_opened(running, checkpoint)

    async def _opened(
        self,
        running: Running,
        opening: Callable[[Sequence[HeldBase]], Checkpoint],
        *,
        peer: str | None = None,
    ) -> Checkpoint:
        """Open a version in a thread. `opening`: gets the weights that the worker holds, and closes them."""
        # Taken once: by the thread that opens the version, or here if it never began.
        bases = deque([self._bases()])
        try:
            return await self._wait_for(
                running, lambda: opening(_taken(bases)), late=Checkpoint.close, peer=peer
            )
        finally:
            Bases(_taken(bases)).close()

    async def _read_opened(
        self, running: Running, checkpoint: Checkpoint, *, peer: str | None = None
    ) -> Weights:
        request = running.request
        try:
            running.check_cancelled()
            await self.drop()
            if self._overtaken is not None:
                # Its stager may hang in a read, but its memory is needed now.
                await asyncio.to_thread(self._overtaken.release)
            budget = await self._make_room(checkpoint.size_bytes)
            budget = _room_for(checkpoint, budget)
        except BaseException:
            await self._free(checkpoint)
            raise
        bringing = partial(self._bring, running, checkpoint, budget)
        try:
            in_memory, digest = await self._wait_for(
                running, bringing, late=lambda _: checkpoint.close(), peer=peer
            )
        except BaseException:
            # The thread closes the files, because it may still read them.
            await asyncio.to_thread(checkpoint.release)
            raise
        if (
            not in_memory and self.rules.budget_bytes > 0
        ):  # a fleet without staging memory wants that
            checkpoint.remarks += (NOT_IN_MEMORY,)
        weights = Weights(
            request.version,
            request.source,
            digest,
            checkpoint,
            run_id=request.run_id,
            in_memory=in_memory,
            read_bytes=checkpoint.read_bytes,
            read_from=running.reads_from,
            by_directory=running.by_directory,
        )
        try:
            check_labels(self._labels, weights)
        except BaseException:
            await self._free(checkpoint)
            raise
        return replace(weights, stage_seconds=self._clock() - running.started)

    def _bring(self, running: Running, checkpoint: Checkpoint, budget: int) -> tuple[bool, str]:
        """In a thread: read and check the bytes. A refused checkpoint is closed.

        Returns: whether the bytes are in memory, and their digest.
        """
        digest, check_cancelled = running.request.digest, running.check_cancelled
        if self.peers is not None and digest is not None:
            checkpoint.show = self.peers.show_of(digest, checkpoint)
            checkpoint.shares_delta = _shares_delta(checkpoint)
        try:
            found = read_accepted(
                checkpoint,
                self.rules,
                digest=digest,
                budget=budget,
                check_cancelled=check_cancelled,
            )
            check_cancelled()
        except BaseException:
            checkpoint.close()
            raise
        if self.peers is not None:
            self.peers.serve(found[1], checkpoint)
        return found

    async def _wait_for(
        self,
        running: Running,
        work: Callable[[], T],
        *,
        late: Callable[[T], object] = lambda _: None,
        peer: str | None = None,
    ) -> T:
        """Do work in a thread. `peer`: the one that it reads, as `StoreThreads` names stores."""
        running.pulse.beat()
        try:
            return await self.threads.run(
                work,
                store=peer or store_of(running.request.source, self.rules.roots),
                within_seconds=self.silence_seconds,
                pulse=running.pulse,
                until=running.unwanted,
                late=late,
            )
        except Refusal:
            running.check_cancelled()  # its message names the superseded version
            if peer is None:  # else the stage continues
                running.superseded.set()  # a thread that is left behind ends at its next piece
            raise


def _without(
    opening: Callable[[Sequence[HeldBase]], Checkpoint], held: Sequence[HeldBase]
) -> Checkpoint:
    """Open a version without the weights that the worker holds."""
    Bases(held).close()
    return opening(())


def _taken(bases: deque[Sequence[HeldBase]]) -> Sequence[HeldBase]:
    try:
        return bases.popleft()
    except IndexError:
        return ()


def _shares_delta(checkpoint: Checkpoint) -> bool:
    """Whether peers may read the newest delta of a checkpoint: it names its base by digest, and is small."""
    if checkpoint.changed is None:
        return False
    delta = checkpoint.changed.deltas[-1]
    most = delta_chain.MOST_OF_A_DELTA * checkpoint.size_bytes
    return bool(delta.index) and delta.size_bytes <= most


def _room_for(checkpoint: Checkpoint, budget: int) -> int:
    """Return how much of a budget the bytes of a checkpoint may take.

    Errors:
        Refusal: `NotAvailable`; only memory can have its bytes, and they do not fit.
    """
    if not checkpoint.is_only_in_memory:
        return budget
    room = budget - (checkpoint.changed.extra_bytes if checkpoint.changed is not None else 0)
    if checkpoint.size_bytes > room:
        raise no_room(checkpoint.size_bytes, max(0, room))
    return room
