"""A trainer that drives this worker itself: its verbs, whatever surface they come by.

They work where the fleet's weights are managed by `External`, under the same lock, latch, checks
and rules as the operator's calls. A trainer knows no epochs: its calls count as of the newest one.
It is known by its address, and holds the worker by the lease of its pause like everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet_worker.adapters.settling import files_of
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.states import Event
from fleet_worker.core.step_labels import label_of, step_of
from fleet_worker.protocol import (
    AdapterRemoval,
    AdapterRequest,
    ApplyRequest,
    Epoch,
    LoadRequest,
    Management,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    Reason,
    Source,
    StageRequest,
    VersionLabel,
)
from fleet_worker.runtime import sleeping
from fleet_worker.runtime.agent import Agent
from fleet_worker.runtime.staging import Weights
from fleet_worker.runtime.transferring import Transfers

_LABELS: TypeAdapter[str] = TypeAdapter(VersionLabel)


@dataclass(frozen=True, slots=True)
class DriverRules:
    """How trainers may drive.

    Fields:
        lease_seconds: how long a pause of theirs lasts without another call.
    """

    management: Management
    lease_seconds: float


class Driver:
    """The verbs. `who` is whom a second driver is told about."""

    def __init__(self, agent: Agent, transfers: Transfers, rules: DriverRules) -> None:
        self.agent = agent
        self.transfers = transfers
        self._rules = rules
        self._pauses_for_update = False

    # --- asking --------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether nothing generates."""
        return self.agent.phase not in (Phase.SERVING, Phase.PAUSING)

    @property
    def is_healthy(self) -> bool:
        """Whether a trainer may begin: the engine is alive, and the worker was admitted."""
        return self.agent.is_open and not self.agent.engine.is_dead

    def check_may_drive(self) -> None:
        """Refuse with `NotYoursToDrive` where the operator brings the weights."""
        if self._rules.management is not Management.EXTERNAL:
            raise Refusal(
                Reason.NOT_YOURS_TO_DRIVE,
                "the operator manages the weights of this fleet: publish versions to it, by its"
                " WeightVersion or the fleet's control address; or set the fleet's"
                " spec.weights.management to External",
            )

    # --- pausing -------------------------------------------------------------------------------

    async def pause(self, who: str, mode: PauseMode, *, keep_cache: bool = False) -> int:
        """Stop generating; how many requests are held.

        A worker that was not admitted yet generates nothing, and is told so as often as it is
        asked: a trainer that updates all its workers may update this one, too.
        """
        self.check_may_drive()
        if self.agent.phase is not Phase.JOINING:
            lease = self._rules.lease_seconds
            request = PauseRequest(
                mode=mode,
                drain_timeout_seconds=lease,
                lease_seconds=lease,
                holder=who,
                epoch=self._epoch,
            )
            await self.agent.pause(request, keep_cache=keep_cache)
        return self.agent.requests()[1]

    async def resume(self, who: str) -> None:
        """Generate again. A worker that was not admitted yet waits for the operator."""
        self.check_may_drive()
        agent = self.agent
        if agent.phase is Phase.JOINING and agent.load_failure is None:
            return
        if self.transfers.is_open:
            raise Refusal(Reason.WRONG_PHASE, "an update has begun and is not finished")
        if agent.phase is Phase.JOINING or agent.version is None:
            raise Refusal(
                Reason.BROKEN,
                "the last load failed inside the engine; this worker waits to be admitted again",
            )
        request = OpenRequest(version=agent.version, holder=who, epoch=self._epoch)
        await agent.open(request, Event.RESUME)

    async def sleep(self, who: str, level: int, mode: PauseMode) -> None:
        """Pause, and give the accelerator's memory up."""
        self.check_may_drive()
        sleeping.check_level(level)
        await self.pause(who, mode)
        async with self.agent.lock:
            await sleeping.sleep(self.agent, level)

    async def wake(self, who: str, tags: Sequence[str] | None) -> None:
        """Take the memory back, and generate again once all is back."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            awake = await sleeping.wake(self.agent, tags)
        if awake:
            await self.resume(who)

    # --- weights from files --------------------------------------------------------------------

    async def load(self, who: str, path: str | None, label: str | None = None) -> str:
        """Put the weights of a directory into the engine; a worker that serves is paused for it.

        Args:
            who: The trainer.
            path: The directory, below a weights root.
            label: Their version; without one the directory's name tells it.

        Returns:
            The version.
        """
        self.check_may_drive()
        source = _source(path)
        agent = self.agent
        label = _label(label) if label is not None else await self._label_of(str(source.path))
        self._check_not_failed(label)
        if label == agent.version:
            await self._check_unchanged(label)
        await self._renew(who)
        await agent.stage(StageRequest(version=label, source=source, epoch=self._epoch))
        if agent.phase is Phase.SERVING:
            await agent.apply(
                ApplyRequest(
                    version=label,
                    mode=PauseMode.KEEP,
                    lease_seconds=self._rules.lease_seconds,
                    holder=who,
                    epoch=self._epoch,
                )
            )
        else:
            await agent.load(LoadRequest(version=label, holder=who, epoch=self._epoch))
        return label

    async def name_version(self, who: str, label: str) -> None:
        """Call the weights that have just been loaded by another label.

        Only before a token was made of them: a label moves no weights, and one that is set at any
        other time would name weights that are not there.
        """
        self.check_may_drive()
        label = _label(label)
        agent = self.agent
        async with agent.lock:
            agent.check_holder(who)
            if label == agent.version:
                return
            if not agent.may_rename or agent.phase not in (Phase.PAUSED, Phase.JOINING):
                raise Refusal(
                    Reason.VERSION_MISMATCH,
                    f"{agent.version} is in the engine: a label is set after new weights were"
                    " loaded and before they are resumed, and never for others",
                )
            await agent.rename(label)

    # --- weights over a collective -------------------------------------------------------------

    async def join_transfer(self, who: str, info: Mapping[str, Any]) -> None:
        """Join a trainer's group."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.join(info)

    async def leave_transfer(self, who: str) -> None:
        """Leave the trainer's group."""
        self.check_may_drive()
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.leave()

    async def begin_transfer(self, who: str) -> None:
        """Make the model ready to receive; a worker that serves is paused until the end of it."""
        self.check_may_drive()
        self.transfers.check_ready()
        serves = self.agent.phase is Phase.SERVING
        await self.pause(who, PauseMode.KEEP, keep_cache=self._keeps_cache)
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.begin()
            # Some trainers pause and resume by themselves; those that do neither expect that
            # generating goes on.
            self._pauses_for_update = serves

    async def receive(self, who: str, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights."""
        self.check_may_drive()
        await self._renew(who)
        async with self.agent.lock:
            self.agent.check_holder(who)
            await self.transfers.receive(info)

    async def end_transfer(self, who: str, label: str | None) -> str:
        """All has been received; paused as it was before."""
        self.check_may_drive()
        label = _label(label) if label is not None else None
        await self._renew(who)
        async with self.agent.lock:
            self.agent.check_holder(who)
            label = await self.transfers.end(label)
        if self._pauses_for_update:
            await self.resume(who)
        return label

    # --- adapters ------------------------------------------------------------------------------

    async def put_adapter(
        self, who: str, name: str, path: str | None, label: str | None = None
    ) -> str:
        """Serve the adapter of a directory under a name; returns its version."""
        self.check_may_drive()
        self.agent.adapters.check_on()
        source = _source(path)
        label = _label(label) if label is not None else await self._label_of(str(source.path))
        request = AdapterRequest(version=label, source=source, holder=who, epoch=self._epoch)
        if self.agent.adapters.serves(_label(name), request):
            await self._check_same_adapter(name, label, str(source.path))
        await self.agent.put_adapter(_label(name), request)
        return label

    async def remove_adapter(self, who: str, name: str) -> None:
        """Serve an adapter no more."""
        self.check_may_drive()
        request = AdapterRemoval(holder=who, epoch=self._epoch)
        await self.agent.remove_adapter(_label(name), request)

    # --- small matters -------------------------------------------------------------------------

    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; whether it was done."""
        self.check_may_drive()
        async with self.agent.lock:
            done = await self.agent.engine.drop_prefixes(running=running)
            if done:
                self.agent.kept.clear()
        return done

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests with what they have; how many were named."""
        self.check_may_drive()
        return await self.agent.engine.abort(request_ids)

    @property
    def _epoch(self) -> Epoch:
        return self.agent.epoch or Epoch(term=0, sequence=0)

    @property
    def _keeps_cache(self) -> bool:
        lease = self.agent.lease
        return lease is not None and lease.cache_kept

    async def _renew(self, who: str) -> None:
        """A call of the holder keeps its pause alive."""
        if self.agent.lease is not None:
            await self.pause(who, PauseMode.KEEP, keep_cache=self._keeps_cache)

    async def _label_of(self, path: str) -> str:
        if (step := step_of(path)) is not None:
            return step
        roots = self.agent.staging.rules.roots
        return label_of(path, await asyncio.to_thread(files_of, path, roots))

    def _check_not_failed(self, label: str) -> None:
        """A trainer that tries again what broke the engine would break it again."""
        agent = self.agent
        failed = agent.load_failure
        if agent.phase is Phase.JOINING and failed is not None and failed.version == label:
            raise Refusal(
                Reason.BROKEN,
                f"loading {label} failed inside the engine ({failed.message}); publish another"
                " version",
            )

    async def _check_unchanged(self, label: str) -> None:
        good = self.agent.good
        if not isinstance(good, Weights):
            return
        try:
            roots = self.agent.staging.rules.roots
            await asyncio.to_thread(good.checkpoint.check_same_on_disk, roots)
        except Refusal as refusal:
            raise Refusal(
                Reason.VERSION_REUSED,
                f"version {label} already stands for the weights that this worker loaded, and the"
                " files are others now; publish them under another number",
            ) from refusal

    async def _check_same_adapter(self, name: str, label: str, path: str) -> None:
        held = self.agent.adapters.held_files(name)
        roots = self.agent.staging.rules.roots
        now = await asyncio.to_thread(files_of, path, roots)
        known = held.identity.files if held is not None else ()
        if any((size, time) != now.get(file, (size, time)) for file, size, _, time in known):
            raise Refusal(
                Reason.VERSION_REUSED,
                f"version {label} of {name} already stands for other files; publish them under"
                " another number",
            )


def _label(text: str) -> str:
    try:
        return _LABELS.validate_python(text)
    except ValidationError as error:
        raise Refusal(
            Reason.BAD_REQUEST,
            "names and versions have at most 63 letters, digits, dots, dashes and underscores",
        ) from error


def _source(path: str | None) -> Source:
    if not path:
        raise Refusal(
            Reason.BAD_REQUEST,
            "a directory is needed: here weights travel by files, not by a collective",
        )
    try:
        return Source(path=path)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, "this is no path of a directory") from error
