"""Requests in vLLM's own types: canary prompts, LoRA adapters, and requests that vLLM refuses in a pause.

vLLM's modules are imported on use: they take seconds, and this one loads before vLLM starts.

Source: `SamplingParams`, `RequestOutput`, `LoRARequest`, `OpenAIServingModels.lora_requests`,
`AsyncLLM.generate` and `RetryableRequestError` of vLLM.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from typing import Any, Protocol

from fleet_worker.engine.records import EngineAdapter, Position
from fleet_worker.engine.vllm_names import EXCEPTIONS, LORA_REQUEST, SAMPLING
from fleet_worker.errors import Refusal


def greedy(max_tokens: int) -> Any:
    """Return the parameters for the most probable continuation."""
    return _parameters(max_tokens=max_tokens)


def scoring(most_probable: int) -> Any:
    """Return the parameters for log-probabilities of the prompt's tokens and the most probable ones."""
    return _parameters(max_tokens=1, prompt_logprobs=most_probable)


def positions_of(output: Any) -> tuple[Position, ...]:
    """Return the positions of the prompt of a `RequestOutput`. The first has no log-probabilities."""
    found = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return tuple(
        Position(
            int(token), {int(each): float(value.logprob) for each, value in (known or {}).items()}
        )
        for token, known in found
    )


def _parameters(**options: Any) -> Any:
    # Imported on use: vLLM takes seconds to import, and this module loads before vLLM starts.
    module = importlib.import_module(SAMPLING)
    final = module.RequestOutputKind.FINAL_ONLY
    return module.SamplingParams(temperature=0.0, output_kind=final, detokenize=False, **options)


Generate = Callable[..., AsyncGenerator[Any, None]]
Using = Callable[[str], AbstractContextManager[EngineAdapter]]


def lora_request(name: str, number: int, path: str) -> Any:
    """Return vLLM's record of an adapter."""
    # Imported on use: vLLM takes seconds to import, and this module loads before vLLM starts.
    module = importlib.import_module(LORA_REQUEST)
    return module.LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


@contextmanager
def _or_not_found(use: AbstractContextManager[EngineAdapter]) -> Iterator[EngineAdapter]:
    """Turn our refusal into vLLM's error for a name that was removed after vLLM found it."""
    with ExitStack() as stack:
        try:
            adapter = stack.enter_context(use)
        except Refusal as refusal:
            module = importlib.import_module(EXCEPTIONS)
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


_MOST_SENDS = 10


class Pausing(Protocol):
    """The worker, as far as it says which refusals a pause has made."""

    steps: int
    """The number of changes of its phase."""

    async def let_in(self, request_id: str, since: int) -> bool:
        """Wait until the worker generates, if a pause came after `since`; say whether to send again."""


def sent_again(generate: Generate, worker: Pausing) -> Generate:
    """Wrap the engine client's `generate`: what vLLM refuses during a pause waits for the end of the pause.

    A request may be on its way into the engine when a pause begins. vLLM queues it, or answers it with
    503. So it waits here, and is sent again. The client may repeat what vLLM refuses for other reasons.

    Args:
        generate: The engine client's method.
        worker: Knows of its pauses.
    """
    refused = importlib.import_module(EXCEPTIONS).RetryableRequestError

    def sending(prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> Any:
        def send() -> AsyncGenerator[Any, None]:
            return generate(prompt, sampling_params, request_id, **options)

        return _Outputs(send, refused, worker, request_id)

    return sending


class _Outputs:
    """The outputs of a request that is sent again until vLLM takes it.

    Only the first output is awaited here. An iteration that begins after it gets the others from vLLM's
    generator itself: a function of ours for each token would cost too much.
    """

    def __init__(
        self,
        send: Callable[[], AsyncGenerator[Any, None]],
        refused: type[Exception],
        worker: Pausing,
        request_id: str,
    ) -> None:
        self._send = send
        self._refused = refused
        self._worker = worker
        self._request_id = request_id
        self._taken: AsyncGenerator[Any, None] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self if self._taken is None else self._taken

    def __anext__(self) -> Awaitable[Any]:
        return self._first() if self._taken is None else self._taken.__anext__()

    async def aclose(self) -> None:
        """End the request."""
        if self._taken is not None:
            await self._taken.aclose()

    async def _first(self) -> Any:
        worker = self._worker
        for sends in range(1, _MOST_SENDS + 1):
            since, outputs = worker.steps, self._send()
            try:
                first = await anext(outputs)
            except self._refused:
                if sends == _MOST_SENDS or not await worker.let_in(self._request_id, since):
                    raise
            else:
                self._taken = outputs
                return first
        raise AssertionError  # the last attempt raises
