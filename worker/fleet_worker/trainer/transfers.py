"""Weights that a trainer sends over a collective, in several calls: begin, receive, end.

Between the first call and the last the model cannot be used, and the worker is `loading`. If the
lease of the trainer expires meanwhile, the worker closes its latch and loads the last good weights
again. Received weights have no files to check. As after every load, a forward pass checks them
before they are labelled.

A trainer names no runs there. One that resumes from an earlier step joins again, and sends the same
versions with other weights. So each joined group is a run of its own.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_worker.checkpoint.identity import short_digest
from fleet_worker.engine.records import Checksum
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle import loading
from fleet_worker.lifecycle.authority import PauseLease
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.weights import Received, in_free_run
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
        self._process = secrets.token_hex(16)
        self._join_ids: set[str] = set()
        self._joined = 0
        self._group: str | None = None  # the run of the joined group
        self._begun_in: str | None = None  # the group of the transfer under way
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
            connected=self._group is not None,
            run_id=self._group,
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

    async def join(self, info: Mapping[str, Any], join_id: str | None = None) -> str:
        """Join the trainer's process group.

        Args:
            info: Arguments of the engine.
            join_id: The same text at all workers that join the group now, and new for each group. It
                counts if the engine knows of no such text itself.

        Returns:
            The run of the group. Without a common text each worker has another one.

        Errors:
            Refusal: `BadRequest`; an earlier group had this `join_id`.
        """
        self.check_available()
        if join_id is not None:
            if join_id in self._join_ids:
                raise Refusal(
                    Reason.BAD_REQUEST,
                    "an earlier process group had this join_id; send a new one for each group",
                )
            self._join_ids.add(join_id)
        self._group = None
        self._ended = None  # another trainer may use the same version
        with self._worker.working("load"):
            common = await self._worker.engine.join_transfer(info)
        self._joined += 1
        self._group = _run_of(common or join_id or f"{self._process} {self._joined}")
        return self._group

    async def leave(self) -> None:
        """Leave the trainer's process group."""
        self.check_available()
        if self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "a weight update is in progress; finish it first")
        await self._worker.engine.leave_transfer()
        self._group = None

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
        self._began, self._begun_in = self._worker.clock(), self._group
        with self._worker.working("load"):
            await self._or_recover(self._worker.engine.begin_transfer())

    async def begin_again(self) -> None:
        """Drop what a transfer in progress has received, and prepare the model once more.

        A trainer starts over if the transfer has failed at another worker.
        """
        self._began, self._begun_in = self._worker.clock(), self._group
        with self._worker.working("load"):
            await self._or_recover(self._restarted())

    async def _restarted(self) -> None:
        await self._worker.engine.cancel_transfer()
        await self._worker.engine.begin_transfer(again=True)

    def check_ready(self) -> None:
        """Refuse to begin a transfer that could not be received."""
        self.check_available()
        if self._group is None:
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

    async def end(self, version: str | None) -> Received:
        """End the transfer: check the received weights and label them.

        A trainer that has lost the answer repeats the call. If the engine still has the weights of
        the last transfer under this version, nothing changes.

        Args:
            version: The version. By default it is made from a checksum of the weights, which is
                the same on every worker and stays unique after a restart.

        Returns:
            The weights.
        """
        worker, ended = self._worker, self._ended
        if (
            ended is not None
            and ended is worker.good
            and version == ended.version == worker.version
        ):
            return ended
        group = self._check_open()
        with worker.working("load", version):
            await self._or_recover(worker.engine.end_transfer())
            checksum = await self._or_recover(self._checksum(needed=version is None))
            short = short_digest(checksum.text)
            # Without all values, other weights may have the same checksum.
            mark = f"sum-{short}" if checksum.is_complete else f"transfer-{self._updates + 1}"
            received = Received(version or label_of_received(short), group, mark)
            weights = in_free_run(worker.labels, received)
            await self._or_recover(loading.check_and_label(worker, weights))
        self._updates += 1
        self._ended = weights
        started, self._began = self._began or worker.clock(), None
        loading.note_loaded(worker, weights, worker.clock() - started)
        if worker.phase is Phase.JOINING:
            worker.lease = None
        return weights

    async def cancel(self) -> None:
        """Cancel a transfer whose lease has expired or that was fenced. Under the lock."""
        if self.is_open:
            message = "the trainer did not finish its weight update"
            await self._recover(EngineFailure(message, touched=True))

    async def _checksum(self, *, needed: bool) -> Checksum:
        """The checksum of the received weights. It shows whether a trainer has sent the same again."""
        try:
            return await self._worker.engine.checksum()
        except EngineFailure as failure:
            if needed:
                raise
            _LOG.warning("the received weights have no checksum: %s", failure.message)
            return Checksum("", is_complete=False)

    def _check_open(self) -> str:
        """The group of the transfer under way."""
        if not self.is_open:
            self.check_available()
            raise Refusal(Reason.WRONG_PHASE, "no weight update is in progress; begin one first")
        if self._group is None or self._group != self._begun_in:
            raise Refusal(
                Reason.WRONG_PHASE,
                "the weight update in progress began in a process group that the trainer has left"
                " since; begin it again",
            )
        return self._group

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


def _run_of(group: str) -> str:
    """The run of a process group, e.g. `group-3fa9c1d04b2e`, from a text that no other group has."""
    return f"group-{short_digest(hashlib.sha256(group.encode()).hexdigest())}"
