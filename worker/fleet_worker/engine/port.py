"""The interface to the engine, with the time that each call may take. vLLM implements it; tests have fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.effect import Effect
from fleet_worker.engine.records import Checksum, EngineAdapter, HeldBytes, Position
from fleet_worker.protocol import EngineInfo, PauseMode

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a call of the engine, which `limits.timed` applies.

    Fields:
        moves_weights: it has the longer limit. Otherwise the engine answers between two of its steps.
        touched: after its timeout the weights or their label may have changed.
    """

    moves_weights: bool
    touched: bool


LIMITS: dict[str, Limit] = {}
"""Name of a method → its limit."""

F = TypeVar("F", bound=Callable[..., Any])


def _limit(*, moves_weights: bool, touched: bool) -> Callable[[F], F]:
    def noted(method: F) -> F:
        LIMITS[method.__name__] = Limit(moves_weights, touched)
        return method

    return noted


_quick = _limit(moves_weights=False, touched=False)
_quick_change = _limit(moves_weights=False, touched=True)
_long = _limit(moves_weights=True, touched=False)
_long_change = _limit(moves_weights=True, touched=True)


class Engine(Protocol):
    """One inference engine.

    Every method except the properties may raise `EngineFailure`. Those without a limit here have it at their
    callers: prompts (`canary_prompts`), pings (`Watch.problem`), and a drain (`quiesce.drained`). `models` asks
    no process.
    """

    @property
    def info(self) -> EngineInfo:
        """The engine's version, model and size."""

    @property
    def is_dead(self) -> bool:
        """Whether the engine's process has ended."""

    def unfinished(self) -> int:
        """The number of requests that have not ended, running or held. Also right while paused."""

    async def ping(self) -> None:
        """Make one round trip to the engine's main loop."""

    @_quick
    async def pause(self, mode: PauseMode, *, keep_cache: bool = False) -> None:
        """Stop generating at once and, without `keep_cache`, drop the KV cache. Idempotent."""

    @_quick
    async def is_paused(self) -> bool:
        """Whether it begins no request until `resume`. With a pause that has returned, it generates nothing.

        vLLM says so also while a drain, or a pause without an answer, still lets running requests generate.
        """

    async def drain(self, *, keep_cache: bool = False) -> None:
        """Pause as soon as the running requests have ended. A pause meanwhile ends the wait."""

    @_quick
    async def resume(self) -> None:
        """Generate again. Idempotent."""

    @_quick
    async def hold(
        self,
        checkpoint: Checkpoint | None,
        base: Checkpoint | None = None,
        room: int = 0,
        *,
        samples: bool = False,
    ) -> HeldBytes:
        """Make the bytes of a checkpoint in memory ready for a load, and let go of all others.

        With `base`, the version in the engine, also for `load_in_place`, which takes at most `room` bytes of
        the host's memory in all processes together. With `samples` also for `compare` after the load: it reads the
        model.

        Also while requests run. It starts the work in the engine's processes; call it again until that is
        done. A load needs none of it.
        """

    @_long_change
    async def load_in_place(self, checkpoint: Checkpoint, base: Checkpoint) -> str | None:
        """Write what differs between two checkpoints in memory into the model. Only while paused.

        Args:
            checkpoint: The version.
            base: The version in the engine.

        Returns:
            Why `load` must follow at once: the model may have a part of the version. None if it has the version.
        """

    @_long_change
    async def load(self, checkpoint: Checkpoint, *, again: bool = False) -> float:
        """Put a checkpoint's bytes into the model. Only while paused.

        Args:
            checkpoint: The version.
            again: `load_in_place` of it was tried right before.

        Returns:
            The seconds until the device had all bytes.

        Errors:
            EngineFailure: `CheckpointChanged`, if it reads other bytes than those of the checkpoint's digest.
        """

    @_quick
    async def compare(self) -> Effect:
        """The changes of the model by the last load or transfer. Also while requests run.

        The weights must be those of that load. A second call knows nothing any more.
        """

    @_long_change
    async def probe(self) -> None:
        """Run a forward pass and check that its numbers are finite. Only while paused."""

    @_long
    async def add_adapter(self, adapter: EngineAdapter) -> None:
        """Load a LoRA adapter into a slot. Idempotent. Also while paused."""

    @_long
    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        """Remove a LoRA adapter. Idempotent. Also while paused."""

    def serve_adapter(self, name: str, source: str | None) -> None:
        """Let requests name a LoRA adapter as their model, or stop that.

        Args:
            name: The model name in requests.
            source: Its source, for the list of models; None removes the name.
        """

    @_long
    async def join_transfer(self, info: Mapping[str, Any]) -> str | None:
        """Join the process group of a trainer; blocks until all members have joined.

        Returns:
            A text that all members of this group have, and no other group; None if the engine knows
            of none.
        """

    @_long
    async def leave_transfer(self) -> None:
        """Leave the trainer's process group."""

    @_long_change
    async def begin_transfer(self, *, again: bool = False) -> None:
        """Prepare the model to receive weights. It must not be used until the transfer ends.

        Args:
            again: A transfer was cancelled, and no other weights were loaded since.
        """

    @_long_change
    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights; blocks until the trainer has sent them."""

    @_long_change
    async def end_transfer(self) -> None:
        """End a transfer after all weights have been received."""

    @_quick_change
    async def cancel_transfer(self) -> None:
        """Cancel a transfer. The model must not be used before the next load."""

    @_long_change
    async def checksum(self) -> Checksum:
        """Checksum of the engine's weights, the same in every engine that has them."""

    @_quick
    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; returns whether the engine did. Running requests prevent it.

        Args:
            running: Also drop the cache of running requests, which compute it again.
        """

    @_long
    async def sleep(self, level: int) -> None:
        """Free the accelerator's memory. Only while paused and without requests."""

    @_long
    async def wake(self, tags: Sequence[str] | None) -> bool:
        """Take the memory back, all of it or the parts in `tags`; returns whether all is back.

        The engine generates again as soon as all is back.
        """

    @_quick
    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests, or all for None, with the tokens they have; returns how many were named."""

    def describe(self) -> dict[str, Any]:
        """The engine's configuration, for trainers."""

    async def models(self) -> list[dict[str, Any]]:
        """The models that requests may name, as `/v1/models` lists them."""

    async def sample(self, prompt: str, max_tokens: int) -> tuple[list[int], list[int]]:
        """The token ids of a text and of its greedy continuation. Not while paused; cancellable.

        Errors:
            Refusal: `BadRequest`, if the prompt does not fit into the context.
        """

    async def score(self, tokens: Sequence[int], *, first: int) -> tuple[Position, ...]:
        """Score each of `tokens[first:]` given the tokens before it. Not while paused."""

    @_quick_change
    async def reset_caches(self) -> None:
        """Drop all caches of earlier weights."""

    @_quick_change
    async def set_version(self, label: str) -> None:
        """Set the label of all later tokens. Only while paused."""
