"""vLLM behind our `Engine` port: the members of its engine client that the worker uses.

Source: `vllm.v1.engine.async_llm.AsyncLLM` of vLLM. All of these names are checked at start
(`required_names`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine import vllm_requests
from fleet_worker.engine.effect import Effect, combined
from fleet_worker.engine.processes import Processes, engine_failure
from fleet_worker.engine.records import Checksum, EngineAdapter, HeldBytes, Position, held_bytes
from fleet_worker.engine.vllm_facts import described
from fleet_worker.errors import EngineFailure, Refusal, counted
from fleet_worker.protocol import EngineInfo, PauseMode, Reason

T = TypeVar("T")

_TOP_LOGPROBS = 20
"""Tokens per position by which two versions are compared. It is vLLM's default limit."""


def load_arguments(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the arguments of `WorkerExtension.rlfleet_load`."""
    return {
        # By descriptor, not by name: the engine must read the files that were checked.
        "files": [checkpoint.link_of(file) for file in checkpoint.files],
        "copies": dict(checkpoint.copies),
        "casts": dict(checkpoint.casts),
        "digests": None if checkpoint.is_held else checkpoint.tensor_digests(),
        "started": checkpoint.is_started_on,
    }


def _links(checkpoint: Checkpoint | None) -> list[str]:
    if checkpoint is None or not checkpoint.is_held:
        return []
    return [checkpoint.link_of(file) for file in checkpoint.files]


class VllmEngine:
    """One vLLM engine, reached through the client that the API server made."""

    def __init__(self, client: Any, info: EngineInfo, models: Any = None) -> None:
        """Wrap an engine client.

        `models`: the list of models of vLLM's routes (`OpenAIServingModels`).
        """
        self._client = client
        self._models = models
        self._processes = Processes(client)
        self._info = info
        self._numbers = itertools.count(1)

    @property
    def info(self) -> EngineInfo:
        """Name, version and model of the engine."""
        return self._info

    @property
    def is_dead(self) -> bool:
        """Whether the engine's process has ended."""
        return bool(self._client.errored)

    def unfinished(self) -> int:
        """Return the number of unfinished requests. Each choice of an `n > 1` request counts."""
        return int(self._client.get_num_unfinished_requests())

    async def ping(self) -> None:
        """Make one round trip to the main loop of the engine core."""
        await self._call(self._client.get_weight_version(), touched=False)

    async def pause(self, mode: PauseMode, *, keep_cache: bool = False) -> None:
        """Stop generating, and clear the cache unless `keep_cache` is set.

        With a kept cache, tokens of new weights read keys and values of old ones. Their spans must
        name these weights.
        """
        await self._call(
            self._client.pause_generation(mode=mode.value, clear_cache=not keep_cache),
            touched=False,
        )

    async def is_paused(self) -> bool:
        """Return what the engine's scheduler says."""
        return bool(await self._call(self._client.is_paused(), touched=False))

    async def drain(self, *, keep_cache: bool = False) -> None:
        """Let the running requests end, then pause."""
        await self.pause(PauseMode.WAIT, keep_cache=keep_cache)

    async def resume(self) -> None:
        """Generate again."""
        await self._call(self._client.resume_generation(), touched=False)

    async def hold(
        self,
        checkpoint: Checkpoint | None,
        base: Checkpoint | None = None,
        room: int = 0,
        *,
        samples: bool = False,
    ) -> HeldBytes:
        """Make a checkpoint's bytes ready for a load, and let go of all others.

        Each process keeps all that differs. A load copies it once more, each process its part of the model.
        """
        each = room // (self._info.world_size + 1)
        given = {"links": _links(checkpoint), "base": _links(base), "room": each}
        given["samples"] = samples
        return held_bytes(await self._processes.call("rlfleet_hold", touched=False, **given))

    async def load_in_place(self, checkpoint: Checkpoint, base: Checkpoint) -> str | None:
        """Write what differs between two checkpoints into the model, in every process of the engine."""
        given = load_arguments(checkpoint)
        answers = await self._processes.call(
            "rlfleet_load_in_place",
            base=_links(base),
            **{name: given[name] for name in ("files", "copies", "casts")},
        )
        return next((str(each["why_not"]) for each in answers if each["why_not"]), None)

    async def load(self, checkpoint: Checkpoint, *, again: bool = False) -> float:
        """Put a checkpoint's bytes into the model, in every process of the engine."""
        await self._check_kernels()
        given = load_arguments(checkpoint) | {"again": again}
        answers = await self._processes.call("rlfleet_load", **given)
        failed = [answer for answer in answers if not answer["ok"]]
        if failed:
            touched = any(answer["touched"] for answer in answers)
            reason = Reason(failed[0]["reason"] or Reason.ENGINE_FAILED)
            message = f"the load failed: {failed[0]['error']}"
            raise EngineFailure(message, touched=touched, reason=reason)
        return max(float(answer["copy_seconds"]) for answer in answers)

    async def compare(self) -> Effect:
        """Return what the last load or update over a collective has changed."""
        return combined(await self._processes.call("rlfleet_effect", touched=False))

    async def probe(self) -> None:
        """Run a dummy batch through the model and check its output."""
        for answer in await self._processes.call("rlfleet_probe"):
            if not answer["ok"]:
                raise EngineFailure(
                    f"the check of the new weights failed: {answer['error']}",
                    touched=True,
                    reason=Reason.PROBE_FAILED,
                )

    async def checksum(self) -> Checksum:
        """Return a checksum of the weights in all processes of the engine."""
        answers = await self._processes.call("rlfleet_checksum")
        checksums = " ".join(answer["checksum"] for answer in answers)  # by rank
        complete = all(answer["complete"] for answer in answers)
        return Checksum(hashlib.sha256(checksums.encode()).hexdigest(), is_complete=complete)

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        """Put an adapter into a slot, and check that the engine lists and applies all of it."""
        add, given = "rlfleet_add_adapter", {"name": adapter.name, "path": adapter.path}
        answers = await self._processes.call(add, touched=False, number=adapter.number, **given)
        # A stage of a pipeline lacks the modules of the other stages.
        if dropped := sorted(set.intersection(*map(set, answers))):
            raise EngineFailure(
                f"the engine does not apply {counted(len(dropped), 'module')} of {adapter}, such as"
                f" {dropped[0]}; train it without them, set --enable-tower-connector-lora for vision"
                " modules, or remove --lora-target-modules",
                touched=False,
            )
        if not all(adapter.number in slots for slots in await self._adapters()):
            raise EngineFailure(f"the engine did not load {adapter}", touched=False)

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        """Remove an adapter, and check that the engine no longer lists it."""
        await self._processes.call("remove_lora", touched=False, lora_id=adapter.number)
        if any(adapter.number in slots for slots in await self._adapters()):
            raise EngineFailure(f"the engine did not remove {adapter}", touched=False)

    def serve_adapter(self, name: str, source: str | None) -> None:
        """Allow requests to name an adapter as their model; None as `source` removes the name."""
        if source is None:
            self._models.lora_requests.pop(name, None)
        else:
            # This is only a name: `with_adapters` chooses the version of each request. The path is
            # the `root` that `/v1/models` shows.
            self._models.lora_requests[name] = vllm_requests.lora_request(name, 1, source)

    async def join_transfer(self, info: Mapping[str, Any]) -> str | None:
        """Join a trainer's group; return what NCCL calls it."""
        await self._check_kernels()
        await self._processes.call(
            "init_weight_transfer_engine", touched=False, init_info=dict(info)
        )
        (name, *others) = set(await self._processes.call("rlfleet_group", touched=False))
        return name if not others else None

    async def leave_transfer(self) -> None:
        """Leave the trainer's group."""
        await self._processes.call("shutdown_weight_transfer_engine", touched=False)

    async def begin_transfer(self, *, again: bool = False) -> None:
        """Make the model ready to receive weights."""
        if not again:  # else the effect is the change since the first begin
            await self._processes.call("rlfleet_remember")
        await self._processes.call("rlfleet_start_transfer")

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights."""
        given = dict(info) if isinstance(info, Mapping) else list(info)
        await self._processes.call("update_weights", update_info=given)

    async def end_transfer(self) -> None:
        """End the update."""
        lacking = await self._processes.call("rlfleet_layers_without_all_parts")
        if names := sorted({name for each in lacking for name in each}):
            raise EngineFailure(
                f"the update lacks parts of {counted(len(names), 'layer')}, such as {names[0]}; send"
                " all parts of a fused layer or none",
                touched=True,
            )
        await self._processes.call("rlfleet_finish_transfer")

    async def cancel_transfer(self) -> None:
        """Cancel a transfer that has begun."""
        await self._processes.call("rlfleet_cancel_transfer")

    async def drop_prefixes(self, *, running: bool) -> bool:
        """Drop cached prefixes; return whether the engine did so."""
        return bool(
            await self._call(
                self._client.reset_prefix_cache(
                    reset_running_requests=running, reset_connector=True
                ),
                touched=False,
            )
        )

    async def sleep(self, level: int) -> None:
        """Free the accelerator's memory."""
        await self._call(self._client.sleep(level=level, mode="abort"), touched=False)

    async def wake(self, tags: Sequence[str] | None) -> bool:
        """Take the memory again. vLLM generates again once it has all of it."""
        given = list(tags) if tags is not None else None
        return bool(await self._call(self._client.wake_up(given), touched=False))

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End requests with the tokens that they have; None ends all."""
        if request_ids is not None:
            await self._call(self._client.abort(list(request_ids)), touched=False)
            return len(request_ids)
        processor = self._client.output_processor
        every = [*processor.request_states, *processor.parent_requests]
        await self._call(self._client.abort(every, internal=True), touched=False)
        return len(every)

    def describe(self) -> dict[str, Any]:
        """Return the parts of the configuration that trainers read."""
        return described(self._client.vllm_config, self._info.model)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that requests may name."""
        listed = await self._models.show_available_models()
        return [card.model_dump() for card in listed.data]

    async def sample(self, prompt: str, max_tokens: int) -> tuple[list[int], list[int]]:
        """Return the ids of a text and of its greedy continuation."""
        ids = [int(token) for token in self._client.get_tokenizer().encode(prompt)]
        # Minus 1, because the text is scored as a prompt, which needs room for one more token.
        limit = int(self._client.vllm_config.model_config.max_model_len) - max_tokens - 1
        if not 0 < len(ids) <= limit:
            raise Refusal(
                Reason.BAD_REQUEST, f"a prompt has {len(ids)} tokens, allowed are 1 to {limit}"
            )
        output = await self._generate(ids, vllm_requests.greedy(max_tokens))
        return ids, [int(token) for token in output.outputs[0].token_ids]

    async def score(self, tokens: Sequence[int], *, first: int) -> tuple[Position, ...]:
        """Return the model's log-probabilities of `tokens[first:]`."""
        allowed = int(self._client.vllm_config.model_config.max_logprobs)
        known = _TOP_LOGPROBS if allowed < 0 else min(_TOP_LOGPROBS, allowed)
        output = await self._generate(list(tokens), vllm_requests.scoring(known))
        return vllm_requests.positions_of(output)[first:]

    async def reset_caches(self) -> None:
        """Drop prefix, multi-modal and encoder caches."""
        done = await self._call(
            self._client.reset_prefix_cache(reset_running_requests=True, reset_connector=True),
            touched=True,
        )
        if not done:
            raise EngineFailure("the engine did not reset its prefix cache", touched=True)
        await self._call(self._client.reset_mm_cache(), touched=True)
        await self._call(self._client.reset_encoder_cache(), touched=True)

    async def set_version(self, label: str) -> None:
        """Set the label, and check that the engine has it."""
        await self._call(self._client.update_weight_version(label), touched=True)
        found = await self._call(self._client.get_weight_version(), touched=True)
        if found != label:
            # The message has no labels, because the engine's labels never leave the worker.
            raise EngineFailure("the engine did not set the label of its weights", touched=True)

    async def _generate(self, tokens: list[int], parameters: Any) -> Any:
        number = next(self._numbers)
        # The salt prevents sharing keys and values with other requests.
        prompt = {"type": "token", "prompt_token_ids": tokens, "cache_salt": f"rlfleet-{number}"}
        outputs = self._client.generate(prompt, parameters, f"rlfleet-probe-{number}")

        async def last() -> Any:
            return [output async for output in outputs][-1]

        return await self._call(last(), touched=False)

    async def _check_kernels(self) -> None:
        """Refuse with `NotAvailable` if a kernel cannot take over new weights."""
        for why in await self._processes.call("rlfleet_unfit_kernel", touched=False):
            if why is not None:
                raise Refusal(Reason.NOT_AVAILABLE, why)

    async def _adapters(self) -> list[list[int]]:
        return await self._processes.call("rlfleet_adapters", touched=False)

    async def _call(self, call: Awaitable[T], *, touched: bool) -> T:
        try:
            return await call
        except Exception as error:
            raise engine_failure(error, touched=touched) from error
