"""The bytes that the engine's processes hold for the next load, as the worker asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.port import Engine
from fleet_worker.errors import EngineFailure

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS, _LATER, _MOST_SECONDS = 0.05, 1.25, 1.0
"""First wait for the next question, how much longer each is, and the longest: the engine makes no step while it
answers.
"""
_HOLD_SECONDS = 300.0
"""To register memory takes about 0.3 s per GB, to unmap it less."""
_COMPARE_SECONDS_PER_BYTE = 10 / 1e9
"""Ten times as long as a process takes to compare alone (`engine.changes.differing`): they may share processors."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """`size`: bytes; the checkpoint has none any more once it is closed."""

    checkpoint: Checkpoint
    size: int


class HeldByEngine:
    """The versions in memory that the engine's processes may map. Their memory is not free, also once the worker
    has dropped them.

    Fields:
        changes_bytes: that the processes may keep of what differs between two versions.
    """

    def __init__(self, engine: Engine) -> None:
        """Begin with none. `engine`: its calls end in bounded time."""
        self._engine = engine
        self._mapped: list[_Mapped] = []
        self.changes_bytes = 0

    def size_beside(self, own: Checkpoint | None) -> int:
        """Bytes of all that may be mapped, except for those of one version."""
        return sum(each.size for each in self._mapped if each.checkpoint is not own)

    def note(self, checkpoint: Checkpoint) -> None:
        """A version is about to be mapped, as by a load."""
        if checkpoint.is_held:
            others = [each for each in self._mapped if each.checkpoint is not checkpoint]
            self._mapped = [*others, _Mapped(checkpoint, checkpoint.size_bytes)]

    async def hold(
        self,
        checkpoint: Checkpoint | None,
        is_wanted: Callable[[], bool],
        base: Checkpoint | None = None,
        room: int = 0,
        *,
        samples: bool = False,
    ) -> str:
        """Let the engine's processes hold a checkpoint, or nothing, and wait until they do.

        Args:
            checkpoint: Its bytes are in memory.
            is_wanted: Asked before each call.
            base: See `Engine.hold`.
            room: See `Engine.hold`.
            samples: See `Engine.hold`.

        Returns:
            How a load will copy the bytes (`HeldBytes.line`); empty once it is not wanted any more.

        Errors:
            EngineFailure (untouched): Some process may hold something else.
        """
        seconds, again = _HOLD_SECONDS, _AGAIN_SECONDS
        if checkpoint is not None and base is not None:
            seconds += _COMPARE_SECONDS_PER_BYTE * checkpoint.size_bytes
        try:
            async with asyncio.timeout(seconds):
                while is_wanted():
                    if checkpoint is not None:
                        self.note(checkpoint)
                    before = tuple(self._mapped)
                    self.changes_bytes = max(self.changes_bytes, room)
                    held = await self._engine.hold(checkpoint, base, room, samples=samples)
                    if held.is_done:
                        self.changes_bytes = held.changes_bytes
                        # A load may have begun meanwhile, and maps what it noted.
                        self._mapped = [
                            each
                            for each in self._mapped
                            if each.checkpoint is checkpoint or each not in before
                        ]
                        return held.line
                    await asyncio.sleep(again)
                    again = min(_MOST_SECONDS, _LATER * again)
        except TimeoutError as error:
            message = f"the engine's processes still work on staged bytes after {seconds:.0f} s"
            raise EngineFailure(message, touched=False) from error
        return ""

    async def let_go(self, is_wanted: Callable[[], bool]) -> None:
        """Let the engine's processes unmap all they hold, or log that they have not.

        Without a call if they hold nothing: an engine that is busy or frozen then delays no stage.
        """
        if not self._mapped:
            return
        try:
            await self.hold(None, is_wanted)
        except EngineFailure as failure:
            _LOG.warning("memory of an earlier version is not free: %s", failure.message)
