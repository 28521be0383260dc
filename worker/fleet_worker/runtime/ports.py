"""What the runtime needs of the world; adapters provide it, tests imitate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core.effect import Effect
from fleet_worker.core.engine_adapter import EngineAdapter
from fleet_worker.core.probing import Position
from fleet_worker.protocol import EngineInfo, PauseMode

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""


class Engine(Protocol):
    """One inference engine.

    Every method but the properties may raise `EngineFailure`, and returns in the engine's own
    time; deadlines are the caller's (`limits.TimedEngine`).
    """

    @property
    def info(self) -> EngineInfo:
        """What it is."""

    @property
    def effect(self) -> Effect:
        """What the last load, or update over a collective, has changed in the model."""

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone."""

    def unfinished(self) -> int:
        """Requests that have not ended, running or held. Right while paused, too."""

    async def ping(self) -> None:
        """One round trip to the engine's main loop."""

    async def pause(self, mode: PauseMode, *, keep_cache: bool = False) -> None:
        """Stop generating and, unless told otherwise, drop all cached keys and values. Idempotent."""

    async def resume(self) -> None:
        """Generate again. Idempotent."""

    async def load(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint's bytes into the model. Only while paused."""

    async def probe(self) -> None:
        """Run the model once and look at what comes out. Only while paused."""

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        """Put an adapter into a slot; nothing happens if it is there. Also while paused."""

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        """Take an adapter out; nothing happens if it is not there. Also while paused."""

    def serve_adapter(self, name: str, source: str | None) -> None:
        """Let requests name an adapter as their model, or no more.

        Args:
            name: What they name.
            source: Where it came from, for the list of models; None takes the name away.
        """

    async def join_transfer(self, info: Mapping[str, Any]) -> None:
        """Join a trainer's group, from which weights come; blocks until all have joined."""

    async def leave_transfer(self) -> None:
        """Leave the trainer's group."""

    async def begin_transfer(self) -> None:
        """Make the model ready to receive weights; until the end it is not to be used."""

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights; blocks until the trainer has sent them."""

    async def end_transfer(self) -> None:
        """All weights have been received."""

    async def abandon_transfer(self) -> None:
        """Forget a transfer that was begun; the model is not to be used."""

    async def checksum(self) -> str:
        """What the weights in the engine are recognised by: hexadecimal digits that are the same
        wherever the same weights are, and others for others.
        """

    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; whether it was done, which running requests prevent.

        Args:
            running: Also drop what running requests hold; it is computed anew.
        """

    async def sleep(self, level: int) -> None:
        """Give the accelerator's memory up. Only while paused, with no request inside."""

    async def wake(self, tags: Sequence[str] | None) -> bool:
        """Take it back, all of it or the parts named; whether all is back. Generates again then."""

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests with what they have, all of them for None; how many were named."""

    def describe(self) -> dict[str, Any]:
        """How it is set up, as trainers ask for it."""

    async def models(self) -> list[dict[str, Any]]:
        """What requests may name as their model, as `/v1/models` lists it."""

    async def sample(self, prompt: str, max_tokens: int) -> tuple[list[int], list[int]]:
        """Ids of a text and of its greedy continuation. Not while paused; can be cancelled.

        Errors:
            Refusal: `BadRequest`, if the prompt does not fit into the context.
        """

    async def score(self, tokens: Sequence[int], *, first: int) -> tuple[Position, ...]:
        """What the model says of `tokens[first:]`, each given those before it. Not while paused."""

    async def reset_caches(self) -> None:
        """Drop everything that was computed from earlier weights."""

    async def set_version(self, label: str) -> None:
        """Label all tokens from here on. Only while paused."""


class Inspector(Protocol):
    """What takes torch and transformers to find out about a checkpoint. Blocks; run in a thread."""

    def read(self, checkpoint: Checkpoint, *, budget: int, go_on: Callable[[], None]) -> bool:
        """Read all bytes of a checkpoint once, digest them, and hold them within the budget.

        Returns whether they are held in memory; raises `Refusal` if a tensor holds an infinity or
        a NaN. Afterwards the checkpoint knows its digest.
        """

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with its defaults filled in."""
