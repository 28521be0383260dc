"""Weights that a trainer sends over a collective, in several calls: begin, receive, end.

Between the first call and the last the model cannot be used, and the worker is `loading`. If the
lease of the trainer expires meanwhile, the worker closes its latch and loads the last good weights
again. Received weights have no files to check. As after every load, a forward pass checks them
before they are labelled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_worker.checkpoint.identity import short_digest
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle import loading
from fleet_worker.lifecycle.authority import PauseLease
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.weights import Received, check_labels
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import Phase, Reason, TransferState
from fleet_worker.trainer.step_labels import label_of_received

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_NEEDS_ACCELERATOR = ("nccl", "sparse_nccl", "nccl_m2n")


@dataclass(frozen=True, slots=True)
class TransferRoom:
    """The engine's support for transfers.

    Fields:
        backend: vLLM's weight transfer engine; None without transfers.
        has_accelerator: there is a device for NCCL.
    """

    backend: str | None = None
    has_accelerator: bool = False


class Transfers:
    """The transfers of one worker. Every call needs the worker's lock."""

    def __init__(self, worker: Worker, room: TransferRoom) -> None:
        self._worker = worker
        self._room = room
        self._connected = False
        self._joined = 0
        self._updates = 0
        self._began: float | None = None
        self._ended: Received | None = None  # by the last transfer, until another one may begin

    @property
    def state(self) -> TransferState | None:
        """The state for the state document; None without transfers."""
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
        """Whether a transfer has begun and has not ended."""
        return self._began is not None and self._worker.phase is Phase.LOADING

    def check_available(self) -> None:
        """Refuse with `NotAvailable` if this engine cannot receive weights."""
        backend = self._room.backend
        if backend is None:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                "this worker loads weights from files only; set --weight-transfer-backend to receive"
                " them over a collective",
            )
        if backend in _NEEDS_ACCELERATOR and not self._room.has_accelerator:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                f"the backend {backend} needs a GPU, and this worker has none; publish the weights"
                " as files",
            )

    async def join(self, info: Mapping[str, Any]) -> None:
        """Join the trainer's process group."""
        self.check_available()
        self._connected = False
        self._ended = None  # another trainer may use the same version
        with self._worker.working("load"):
            await self._worker.engine.join_transfer(info)
        self._connected = True
        self._joined += 1

    async def leave(self) -> None:
        """Leave the trainer's process group."""
        self.check_available()
        if self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "a weight update is in progress; finish it first")
        await self._worker.engine.leave_transfer()
        self._connected = False

    async def begin(self, lease: PauseLease) -> None:
        """Prepare the model to receive weights. It cannot be used until the transfer ends.

        Args:
            lease: The lease of the transfer if the worker has no pause, as in `joining`.
        """
        self._ended = None
        self.check_ready()
        self._worker.check_step(Event.LOAD)
        await loading.ensure_quiet(self._worker)
        self._worker.enter(Event.LOAD)
        self._worker.lease = self._worker.lease or lease
        self._worker.changed.set()
        self._worker.version = None  # the model has parts of two versions for a while
        self._began = self._worker.clock()
        with self._worker.working("load"):
            await self._or_recover(self._worker.engine.begin_transfer())

    async def begin_again(self) -> None:
        """Drop what a transfer in progress has received, and prepare the model once more.

        A trainer starts over if the transfer has failed at another worker.
        """
        self._began = self._worker.clock()
        with self._worker.working("load"):
            await self._or_recover(self._restarted())

    async def _restarted(self) -> None:
        await self._worker.engine.cancel_transfer()
        await self._worker.engine.begin_transfer(again=True)

    def check_ready(self) -> None:
        """Refuse to begin a transfer that could not be received."""
        self.check_available()
        if not self._connected:
            raise Refusal(
                Reason.WRONG_PHASE,
                "the worker has joined no trainer's process group since it started; call"
                " init_weight_transfer_engine first",
            )

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some of the weights."""
        self._check_open()
        with self._worker.working("load"):
            await self._or_recover(self._worker.engine.receive(info))

    async def end(self, version: str | None) -> str:
        """End the transfer: check the received weights and label them.

        A trainer that has lost the answer repeats the call. If the engine still has the weights of
        the last transfer under this version, nothing changes.

        Args:
            version: The version. By default it is made from a checksum of the weights, which is
                the same on every worker and stays unique after a restart.

        Returns:
            The version.
        """
        worker, ended = self._worker, self._ended
        if (
            ended is not None
            and ended is worker.good
            and version == ended.version == worker.version
        ):
            return ended.version
        self._check_open()
        # Two transfers are different weights, even with the same version.
        mark = f"transfer-{self._updates + 1}"
        if version is not None:
            await self._check_label(Received(version, mark, self._joined))
        with worker.working("load", version):
            await self._or_recover(worker.engine.end_transfer())
            if version is None:
                checksum = await self._or_recover(worker.engine.checksum())
                short = short_digest(checksum.text)
                version = label_of_received(short)
                # Without all values, other weights may have the same checksum.
                mark = short if checksum.is_complete else mark
                await self._check_label(Received(version, mark, self._joined))
            weights = Received(version, mark, self._joined)
            await self._or_recover(loading.check_and_label(worker, weights))
        self._updates += 1
        self._ended = weights
        started, self._began = self._began or worker.clock(), None
        loading.note_loaded(worker, weights, worker.clock() - started)
        if worker.phase is Phase.JOINING:
            worker.lease = None
        return weights.version

    async def cancel(self) -> None:
        """Cancel a transfer whose lease has expired or that was fenced. Under the lock."""
        if self.is_open:
            message = "the trainer did not finish its weight update"
            await self._recover(EngineFailure(message, touched=True))

    async def _check_label(self, weights: Received) -> None:
        try:
            check_labels(self._worker.labels, weights)
        except Refusal as refusal:
            # The previous weights are no longer in the engine.
            failure = EngineFailure(refusal.message, touched=True, reason=refusal.reason)
            await self._recover(failure)
            raise

    def _check_open(self) -> None:
        if not self.is_open:
            self.check_available()
            raise Refusal(Reason.WRONG_PHASE, "no weight update is in progress; begin one first")

    async def _or_recover(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except EngineFailure as failure:
            await self._recover(failure)
            raise
        except Exception as error:
            # A defect in the worker: the model may have parts of two versions.
            message = f"the weight update failed with an unexpected {type(error).__name__}"
            await self._recover(broken := EngineFailure(message, touched=True))
            raise broken from error

    async def _recover(self, failure: EngineFailure) -> None:
        self._began = None
        try:
            await self._worker.engine.cancel_transfer()
        except EngineFailure as error:
            _LOG.error("the transfer could not be cancelled: %s", error.message)
        await loading.recover(self._worker, None, failure)
