"""Weights that come over a collective: begun, received in pieces, finished; over several calls.

Between the first call and the last the model is nothing that could be used: the worker is `loading`
all the while, whoever asks, and if the driver stays away until its lease has run out, the last good
weights are put back behind a closed latch. What is received cannot be checked beforehand as files
are; it is looked at by a forward pass, as every load is, before it is labelled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_worker.core.fencing import Lease
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event
from fleet_worker.core.step_labels import label_of_received
from fleet_worker.core.weight_names import short_digest
from fleet_worker.protocol import Phase, Reason, TransferState
from fleet_worker.runtime import loading
from fleet_worker.runtime.weights import Received, check_labels
from fleet_worker.runtime.worker import Worker

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_NEEDS_ACCELERATOR = ("nccl", "sparse_nccl", "nccl_m2n")


@dataclass(frozen=True, slots=True)
class TransferRoom:
    """What the engine was started with.

    Fields:
        backend: vLLM's weight transfer engine; None if it takes no weights over a collective.
        has_accelerator: a device that NCCL could talk to.
    """

    backend: str | None = None
    has_accelerator: bool = False


class Transfers:
    """The transfers of one worker; every call comes under the worker's lock."""

    def __init__(self, worker: Worker, room: TransferRoom) -> None:
        self._worker = worker
        self._room = room
        self._connected = False
        self._updates = 0
        self._began: float | None = None

    @property
    def state(self) -> TransferState | None:
        """For the state document."""
        if self._room.backend is None:
            return None
        return TransferState(
            backend=self._room.backend,
            connected=self._connected,
            updating=self.is_open,
            updates=self._updates,
        )

    @property
    def is_open(self) -> bool:
        """Whether an update was begun and is not finished."""
        return self._began is not None and self._worker.phase is Phase.LOADING

    def check_available(self) -> None:
        """Refuse with `NotAvailable` what this engine cannot do."""
        backend = self._room.backend
        if backend is None:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                "this worker takes weights from files only; start it with --weight-transfer-backend"
                " to receive them over a collective",
            )
        if backend in _NEEDS_ACCELERATOR and not self._room.has_accelerator:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                f"weights over {backend} need a GPU, and this worker has none; publish them as files",
            )

    async def join(self, info: Mapping[str, Any]) -> None:
        """Join a trainer's group."""
        self.check_available()
        self._connected = False
        with self._worker.working("load"):
            await self._worker.engine.join_transfer(info)
        self._connected = True

    async def leave(self) -> None:
        """Leave the trainer's group."""
        self.check_available()
        if self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "an update has begun and is not finished")
        await self._worker.engine.leave_transfer()
        self._connected = False

    async def begin(self, lease: Lease) -> None:
        """Make the model ready to receive; from here on it is not to be used.

        Args:
            lease: Should there be no pause yet, as in `joining`: it must end some time, too.
        """
        self.check_ready()
        self._worker.check_step(Event.LOAD)
        await loading.hold_still(self._worker)
        self._worker.enter(Event.LOAD)
        self._worker.lease = self._worker.lease or lease
        self._worker.changed.set()
        self._worker.version = None  # it may be half of one and half of another for a while
        self._began = self._worker.clock()
        with self._worker.working("load"):
            await self._or_recover(self._worker.engine.begin_transfer())

    def check_ready(self) -> None:
        """Refuse to begin an update that could not be received."""
        self.check_available()
        if self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "an update has begun and is not finished")
        if not self._connected:
            raise Refusal(
                Reason.WRONG_PHASE,
                "no trainer's group has been joined since this process started"
                " (init_weight_transfer_engine)",
            )

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights."""
        self._check_open()
        with self._worker.working("load"):
            await self._or_recover(self._worker.engine.receive(info))

    async def end(self, version: str | None) -> str:
        """All has been received: look at it, and label it.

        Args:
            version: The label; without one it is made of what has been received, so that it is
                the same on every worker, and no other weights have it after a restart.

        Returns:
            The label.
        """
        self._check_open()
        worker = self._worker
        # No two transfers are the same weights, whatever the trainer calls them.
        mark = f"transfer-{self._updates + 1}"
        if version is not None:
            await self._check_label(Received(version, mark))
        with worker.working("load", version):
            await self._or_recover(worker.engine.end_transfer())
            if version is None:
                mark = short_digest(await self._or_recover(worker.engine.checksum()))
            weights = Received(version or label_of_received(mark), mark)
            await self._or_recover(loading.settle_in(worker, weights))
        self._updates += 1
        started, self._began = self._began or worker.clock(), None
        loading.note_loaded(worker, weights, worker.clock() - started)
        if worker.phase is Phase.JOINING:
            worker.lease = None
        return weights.version

    async def give_up(self) -> None:
        """The driver did not come back in time, or was fenced off. Called under the lock."""
        if self.is_open:
            await self._recover(EngineFailure("its driver did not finish an update", touched=True))

    async def _check_label(self, weights: Received) -> None:
        try:
            check_labels(self._worker.labels, weights)
        except Refusal as refusal:
            # Too late to go back to what was in the engine.
            failure = EngineFailure(refusal.message, touched=True, reason=refusal.reason)
            await self._recover(failure)
            raise

    def _check_open(self) -> None:
        if not self.is_open:
            self.check_available()
            raise Refusal(Reason.WRONG_PHASE, "no update has begun; start one first")

    async def _or_recover(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except EngineFailure as failure:
            await self._recover(failure)
            raise
        except Exception as error:
            # A mistake of ours, somewhere between the steps: the model may be half-way.
            words = f"the update broke off: {type(error).__name__}"
            await self._recover(broken := EngineFailure(words, touched=True))
            raise broken from error

    async def _recover(self, failure: EngineFailure) -> None:
        self._began = None
        try:
            await self._worker.engine.abandon_transfer()
        except EngineFailure as error:
            _LOG.error("the transfer could not be abandoned: %s", error.message)
        await loading.recover(self._worker, None, failure)
