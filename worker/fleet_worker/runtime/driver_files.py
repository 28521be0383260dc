"""What a trainer publishes as files: weights and adapters, and which version they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_worker.adapters.settling import files_of
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.step_labels import label_of, step_of
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
)
from fleet_worker.runtime.driver_seat import DriverSeat

T = TypeVar("T")

_LABELS: TypeAdapter[str] = TypeAdapter(VersionLabel)


class FilesDriver(DriverSeat):
    """The verbs that load directories."""

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
        label = (
            checked_label(label) if label is not None else await self._label_of(str(source.path))
        )
        self._check_not_failed(label, source)
        await self.renew(who)
        stage = StageRequest(version=label, source=source, epoch=self.epoch)
        # The bytes, too: another trainer's directory may hold another version of this number.
        digest = await agent.stage(stage, by_directory=True)
        if agent.phase is Phase.SERVING:
            await agent.apply(
                ApplyRequest(
                    version=label,
                    digest=digest,
                    mode=PauseMode.KEEP,
                    lease_seconds=self.rules.lease_seconds,
                    holder=who,
                    epoch=self.epoch,
                )
            )
        else:
            await agent.load(
                LoadRequest(version=label, digest=digest, holder=who, epoch=self.epoch)
            )
        return label

    async def name_version(self, who: str, label: str) -> None:
        """Call the weights that have just been loaded by another label.

        Only before a token was made of them: a label moves no weights, and one that is set at any
        other time would name weights that are not there.
        """
        self.check_may_drive()
        label = checked_label(label)
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

    # --- adapters ------------------------------------------------------------------------------

    async def put_adapter(
        self, who: str, name: str, path: str | None, label: str | None = None
    ) -> str:
        """Serve the adapter of a directory under a name; returns its version."""
        self.check_may_drive()
        self.agent.adapters.check_on()
        source = _source(path)
        label = (
            checked_label(label) if label is not None else await self._label_of(str(source.path))
        )
        request = AdapterRequest(version=label, source=source, holder=who, epoch=self.epoch)
        await self.agent.put_adapter(checked_label(name), request, by_directory=True)
        return label

    async def remove_adapter(self, who: str, name: str) -> None:
        """Serve an adapter no more."""
        self.check_may_drive()
        request = AdapterRemoval(holder=who, epoch=self.epoch)
        await self.agent.remove_adapter(checked_label(name), request)

    async def _label_of(self, path: str) -> str:
        if (step := step_of(path)) is not None:
            return step
        roots = self.agent.staging.rules.roots
        return label_of(path, await self._ask(partial(files_of, path, roots), path))

    def _check_not_failed(self, label: str, source: Source) -> None:
        """A trainer that tries again what broke the engine would break it again."""
        agent = self.agent
        failed = agent.load_failure
        if failed is None or agent.phase is not Phase.JOINING:
            return
        if (failed.version, failed.source) == (label, str(source)):
            raise Refusal(
                Reason.BROKEN,
                f"loading {label} failed inside the engine ({failed.message}); publish another"
                " version",
            )

    async def _ask(self, look: Callable[[], T], path: str) -> T:
        """Look at a store that may not answer."""
        staging = self.agent.staging
        return await staging.threads.run(look, store=staging.rules.roots.root_of(path))


def checked_label(text: str) -> str:
    """A name or a version as workers take them.

    Errors:
        Refusal: `BadRequest`, without repeating it.
    """
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
