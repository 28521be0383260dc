"""The calls of a trainer that updates this worker itself, the same for every dialect.

Weights and adapters come as files or over a collective. The calls work in an External fleet, under the
same lock, latch and checks as the operator's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_worker.checkpoint.completeness import files_of
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.authority import PauseLease
from fleet_worker.lifecycle.weights import Received
from fleet_worker.protocol import (
    AdapterRemoval,
    AdapterRequest,
    ApplyRequest,
    LoadRequest,
    PauseMode,
    Phase,
    Reason,
    Source,
    StageRequest,
    VersionLabel,
    step_of,
    with_single_slashes,
)
from fleet_worker.trainer.driver_seat import DriverRules, DriverSeat
from fleet_worker.trainer.step_labels import label_of
from fleet_worker.trainer.transfers import Transfers

T = TypeVar("T")

_LABELS: TypeAdapter[str] = TypeAdapter(VersionLabel)


class FilesDriver:
    """The calls that load from directories."""

    def __init__(self, seat: DriverSeat) -> None:
        self._seat = seat

    async def load(self, trainer: str, path: str | None, label: str | None = None) -> str:
        """Load the weights of a directory. A serving worker is paused for the load.

        Args:
            trainer: Address of the trainer.
            path: The directory, below a weights root.
            label: The version; by default it is taken from the directory's name.

        Returns:
            The version.
        """
        self._seat.check_may_drive()
        source = _source(path)
        agent = self._seat.agent
        given, label = label, await self._label(label, source)
        self._check_not_failed(label, source)
        await self._seat.renew(trainer)
        stage = StageRequest(version=label, source=source, epoch=self._seat.epoch)
        # By digest: another trainer's directory may have other weights with this version.
        digest = await agent.stage(stage, by_directory=True)
        await self._check_still_named(given, label, source)
        if agent.phase is Phase.SERVING:
            await agent.apply(
                ApplyRequest(
                    version=label,
                    digest=digest,
                    mode=PauseMode.KEEP,
                    lease_seconds=self._seat.rules.lease_seconds,
                    holder=trainer,
                    epoch=self._seat.epoch,
                )
            )
        else:
            await agent.load(
                LoadRequest(version=label, digest=digest, holder=trainer, epoch=self._seat.epoch)
            )
        return label

    async def name_version(self, trainer: str, label: str) -> None:
        """Change the version of weights that have just been loaded.

        Only before the weights have made a token: a later change would give one set of weights two
        versions.
        """
        self._seat.check_may_drive()
        label = checked_label(label)
        agent = self._seat.agent
        async with agent.lock:
            agent.check_holder(trainer)
            if label == agent.version:
                return
            if not agent.may_rename or agent.phase not in (Phase.PAUSED, Phase.JOINING):
                raise Refusal(
                    Reason.VERSION_MISMATCH,
                    f"the engine serves version {agent.version}: set another version only between"
                    " the load of new weights and the resume",
                )
            await agent.rename(label)

    # --- adapters ------------------------------------------------------------------------------

    async def put_adapter(
        self, trainer: str, name: str, path: str | None, label: str | None = None
    ) -> str:
        """Serve the LoRA adapter of a directory under a name; returns its version."""
        self._seat.check_may_drive()
        self._seat.agent.adapters.check_enabled()
        source, name, agent = _source(path), checked_label(name), self._seat.agent
        with agent.lora.turns.turn() as turn:
            given, label = label, await self._label(label, source)
            request = AdapterRequest(
                version=label, source=source, holder=trainer, epoch=self._seat.epoch
            )
            put = partial(agent.put_adapter, name, by_directory=True, turn=turn)
            # No request gets the version before its name is certain.
            await put(request.model_copy(update={"stage_only": True}))
            await self._check_still_named(given, label, source)
            await put(request)
        return label

    async def remove_adapter(self, trainer: str, name: str) -> None:
        """Stop serving a LoRA adapter."""
        self._seat.check_may_drive()
        request = AdapterRemoval(holder=trainer, epoch=self._seat.epoch)
        await self._seat.agent.remove_adapter(checked_label(name), request)

    async def _label(self, given: str | None, source: Source) -> str:
        """The version of a directory: the given one, or that of its name and files."""
        return checked_label(given) if given is not None else await self._label_of(str(source.path))

    async def _check_still_named(self, given: str | None, label: str, source: Source) -> None:
        """Check that files that named their version have not changed before the worker read them.

        Otherwise a peer may serve the files before the change under the same version.

        Errors:
            Refusal: `CheckpointChanged`.
        """
        if await self._label(given, source) != label:
            raise Refusal(
                Reason.CHECKPOINT_CHANGED,
                f"the files in {source} changed after they had named version {label}; load them"
                " again",
            )

    async def _label_of(self, path: str) -> str:
        if (step := step_of(path)) is not None:
            return step
        roots = self._seat.agent.staging.rules.roots
        return label_of(path, await self._in_thread(partial(files_of, path, roots), path))

    def _check_not_failed(self, label: str, source: Source) -> None:
        """Refuse with `Broken` a source that has just broken the engine."""
        agent = self._seat.agent
        failed = agent.load_failure
        if failed is None or agent.phase is not Phase.JOINING:
            return
        if (failed.version, failed.source) == (label, str(source)):
            raise Refusal(
                Reason.BROKEN,
                f"the load of version {label} failed inside the engine ({failed.message}); publish"
                " another version",
            )

    async def _in_thread(self, work: Callable[[], T], path: str) -> T:
        """Work on a file system, which may not answer."""
        staging = self._seat.agent.staging
        return await staging.threads.run(work, store=staging.rules.roots.root_of(path))


def checked_label(text: str) -> str:
    """Return the text if it is valid as a name or a version.

    Errors:
        Refusal: `BadRequest`; the message does not repeat the text.
    """
    try:
        return _LABELS.validate_python(text)
    except ValidationError as error:
        raise Refusal(
            Reason.BAD_REQUEST,
            "invalid name or version: use at most 63 letters, digits, dots, dashes and underscores",
        ) from error


def _source(path: str | None) -> Source:
    if not path:
        raise Refusal(
            Reason.BAD_REQUEST,
            "missing directory: this call loads files; it receives no weights over a collective",
        )
    try:
        return Source(path=with_single_slashes(path))
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, "invalid directory path") from error


class CollectiveDriver:
    """The calls that send weights over a collective."""

    def __init__(self, seat: DriverSeat) -> None:
        self._seat = seat
        self._pauses_for_update = False

    async def join_transfer(
        self, trainer: str, info: Mapping[str, Any], join_id: str | None = None
    ) -> str:
        """Join the trainer's process group; returns its run."""
        self._seat.check_may_drive()
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            return await self._seat.transfers.join(info, join_id)

    async def leave_transfer(self, trainer: str) -> None:
        """Leave the trainer's process group."""
        self._seat.check_may_drive()
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            await self._seat.transfers.leave()

    async def begin_transfer(self, trainer: str, label: str | None = None) -> None:
        """Prepare the model to receive weights. A serving worker is paused until the transfer ends.

        In the middle of a transfer its trainer starts it over.

        Args:
            trainer: Address of the trainer.
            label: The version, if the trainer names it already: an invalid one is refused now.
        """
        self._seat.check_may_drive()
        if label is not None:
            checked_label(label)
        self._seat.transfers.check_ready()
        if self._seat.transfers.is_open:
            await self._seat.renew(trainer)
            async with self._seat.agent.lock:
                self._seat.agent.check_holder(trainer)
                if self._seat.transfers.is_open:
                    await self._seat.transfers.begin_again()
                    return
        was_serving = self._seat.agent.phase is Phase.SERVING
        await self._seat.pause(trainer, PauseMode.KEEP, keep_cache=self._seat.keeps_cache)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            now = self._seat.agent.clock()
            expires = now + self._seat.rules.lease_seconds
            await self._seat.transfers.begin(PauseLease(PauseMode.KEEP, trainer, now, expires))
            # A trainer that did not pause the worker will not resume it either.
            self._pauses_for_update = was_serving

    async def receive(self, trainer: str, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some of the weights."""
        self._seat.check_may_drive()
        await self._seat.renew(trainer)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            await self._seat.transfers.receive(info)

    async def end_transfer(self, trainer: str, label: str | None) -> Received:
        """End the transfer and return its weights. The worker is then paused or serving as before."""
        self._seat.check_may_drive()
        label = checked_label(label) if label is not None else None
        # A repetition may come while the first call resumes the worker, and a renewal would pause it then.
        if self._seat.transfers.is_open:
            await self._seat.renew(trainer)
        async with self._seat.agent.lock:
            self._seat.agent.check_holder(trainer)
            weights = await self._seat.transfers.end(label)
        if self._pauses_for_update:
            await self._seat.resume(trainer)
            self._pauses_for_update = False  # a repetition ends no later pause
        return weights


class Driver:
    """All calls of a trainer.

    Fields:
        seat: the calls that load no weights.
        files: the calls that load weights and LoRA adapters from directories.
        collective: the calls that send weights over a collective.
    """

    def __init__(self, agent: Agent, transfers: Transfers, rules: DriverRules) -> None:
        self.seat = DriverSeat(agent, transfers, rules)
        self.files = FilesDriver(self.seat)
        self.collective = CollectiveDriver(self.seat)


__all__ = ["Driver", "DriverRules"]
