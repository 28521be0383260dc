"""LoRA adapters in vLLM: its records of them, and the version that a request gets.

Source: `LoRARequest`, `AsyncLLM.generate` and `OpenAIServingModels.lora_requests`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from typing import Any

from fleet_worker.engine.records import EngineAdapter
from fleet_worker.errors import Refusal

Generate = Callable[..., AsyncGenerator[Any, None]]
Using = Callable[[str], AbstractContextManager[EngineAdapter]]


def lora_request(name: str, number: int, path: str) -> Any:
    """Return vLLM's record of an adapter."""
    # Imported on use: vLLM takes seconds to import, and this module loads before vLLM starts.
    module = importlib.import_module("vllm.lora.request")
    return module.LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


@contextmanager
def _or_not_found(use: AbstractContextManager[EngineAdapter]) -> Iterator[EngineAdapter]:
    """Turn our refusal into vLLM's error for a name that was removed after vLLM found it."""
    with ExitStack() as stack:
        try:
            adapter = stack.enter_context(use)
        except Refusal as refusal:
            module = importlib.import_module("vllm.exceptions")
            raise module.VLLMNotFoundError(refusal.message) from refusal
        yield adapter


def with_adapters(generate: Generate, using: Using) -> Generate:
    """Wrap the engine client's `generate` to choose the version of the adapter that a request names.

    The choice and the count of the request are one step. Before it vLLM only checks that the name
    exists. After it the version stays in the engine until the request ends.
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
