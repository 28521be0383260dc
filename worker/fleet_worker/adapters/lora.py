"""Adapters on their way through vLLM: its records of them, and which version a request gets.

Source: `LoRARequest`, `AsyncLLM.generate` and `OpenAIServingModels.lora_requests`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from typing import Any

from fleet_worker.core.engine_adapter import EngineAdapter
from fleet_worker.core.refusals import Refusal

Generate = Callable[..., AsyncGenerator[Any, None]]
Using = Callable[[str], AbstractContextManager[EngineAdapter]]


def lora_request(name: str, number: int, path: str) -> Any:
    """vLLM's record of an adapter."""
    # Imported when it is used: vLLM takes seconds, and this module is read before it is started.
    module = importlib.import_module("vllm.lora.request")
    return module.LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


@contextmanager
def _or_not_found(use: AbstractContextManager[EngineAdapter]) -> Iterator[EngineAdapter]:
    """Tell vLLM, in its own words, that a name was removed after it was looked up."""
    with ExitStack() as stack:
        try:
            adapter = stack.enter_context(use)
        except Refusal as refusal:
            module = importlib.import_module("vllm.exceptions")
            raise module.VLLMNotFoundError(refusal.message) from refusal
        yield adapter


def with_adapters(generate: Generate, using: Using) -> Generate:
    """The engine client's `generate`, which is told the version that an adapter's name stands for.

    Decided here, in one step with counting the request: before, vLLM only looks whether there is
    such a name; afterwards, the version stays in the engine until the request has ended.
    """

    def choosing(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        served = options.pop("lora_request", None)
        if served is None:
            return generate(prompt, sampling_params, request_id, **options)
        return _generate_with(served.lora_name, prompt, sampling_params, request_id, options)

    async def _generate_with(
        name: str, prompt: Any, sampling_params: Any, request_id: str, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        with _or_not_found(using(name)) as adapter:
            chosen = lora_request(adapter.name, adapter.number, adapter.path)
            outputs = generate(prompt, sampling_params, request_id, lora_request=chosen, **options)
            async with aclosing(outputs):
                async for output in outputs:
                    yield output

    return choosing
