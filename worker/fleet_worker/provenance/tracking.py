"""Collects the weight versions of a request's tokens between the engine and the reply.

vLLM's serving code drops them on the OpenAI routes. `tracked` wraps the engine client's `generate`,
from which every route gets its tokens. `collecting` opens a collection for one request. `generate`
runs somewhere below it and finds the collection in a context variable.

The engine's labels stop here: vLLM's serving code gets plain versions.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fleet_worker.checkpoint.identity import WeightName, WeightNames
from fleet_worker.engine.records import weight_name_of
from fleet_worker.lifecycle.kept_cache import Beginning, KeptCache
from fleet_worker.provenance.spans import Span

Generate = Callable[..., AsyncGenerator[Any, None]]

# Beam search stitches beams from single-token requests, so the engine's spans cannot be attributed.
_MEDIA = ("multi_modal_data", "mm_kwargs", "mm_hashes", "multi_modal_uuids")

_ABORT = "abort"
DRAINED = "drained"
"""`stop_reason` of a request that the worker has ended since its drain timeout was over. Its
`finish_reason` stays `abort`: trainers that send the rest of such a request again go by that.
"""

_BEAM = re.compile(r"-beam-\d+$")


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt of a request in the engine.

    Fields:
        first_choice: index of its first choice in the reply.
        is_delta: every output holds the new tokens only, as in streams.
        beginning: the state when it reached the engine.
        has_media: the prompt has images, audio or video. The engine may reuse what its encoder made
            of them for an earlier request.
    """

    first_choice: int
    is_delta: bool
    beginning: Beginning
    has_media: bool


class Tokens:
    """The tokens of a request and their weights.

    Fields:
        spans: choice index → its spans, once the choice has ended.
        first: the weights in the engine when the first token arrived.
        last: the same of the latest one.
        adapter: the adapter that the request uses, if it uses one.
        request_ids: the ids of the request in the engine, one a prompt.
        is_uneven: a choice ended with different numbers of tokens, log-probabilities and labels.
    """

    def __init__(
        self,
        names: WeightNames,
        name: Callable[[], WeightName | None],
        kept: KeptCache,
        adapter_name: Callable[[str], WeightName] = weight_name_of,
    ) -> None:
        self.spans: dict[int, list[Span] | None] = {}
        self.first: WeightName | None = None
        self.last: WeightName | None = None
        self.adapter: WeightName | None = None
        self.request_ids: list[str] = []
        self.is_uneven = False
        self._names = names
        self._name = name
        self._kept = kept
        self._adapter_name = adapter_name
        self._counts: dict[int, int] = {}
        self._prompts = 0
        self._choices = 0
        self._aborted = 0

    @property
    def is_without_tokens(self) -> bool:
        """Whether the engine has ended all choices before their first token."""
        return 0 < self._choices == self._aborted and not any(self._counts.values())

    @property
    def policy(self) -> WeightName | None:
        """The weights that a demand means: the adapter, or else those of the latest token."""
        return self.adapter or self.last

    def begin(self, prompt: Any, sampling_params: Any, request_id: str) -> Generation:
        """The next prompt's generation begins; prompts come in the order of the reply's choices."""
        number, self._prompts = self._prompts, self._prompts + 1
        kind = getattr(sampling_params, "output_kind", None)
        choices = getattr(sampling_params, "n", 1) or 1
        self._choices += choices
        self.request_ids.append(request_id)
        return Generation(
            first_choice=number * choices,
            is_delta=getattr(kind, "name", "") == "DELTA",
            beginning=self._kept.begin(),
            has_media=has_media(prompt),
        )

    def see(self, output: Any, generation: Generation) -> None:
        """Take the versions from an output of the engine (`RequestOutput`)."""
        self.last = self._name()
        if self.first is None:
            self.first = self.last
        lora = output.lora_request
        if lora is not None:
            self.adapter = self._adapter_name(lora.lora_name)
        for choice in output.outputs:
            index = generation.first_choice + choice.index
            self._count(index, choice, is_delta=generation.is_delta)
            if choice.finish_reason is None:
                continue
            self._aborted += choice.finish_reason == _ABORT
            # Of the prompt, 0 cached tokens mean that nothing came from the cache. None means unknown.
            found_cached = output.num_cached_tokens != 0
            spans = choice.weight_versions
            self.spans[index] = (
                None
                if spans is None
                else [self._span(s, generation, found_cached=found_cached) for s in spans]
            )
            if spans and spans[-1].end != self._counts[index]:
                self.is_uneven = True

    def _span(self, labelled: Any, generation: Generation, *, found_cached: bool) -> Span:
        """Ours for a span of the engine (`WeightVersionSpan`), which carries its label."""
        name = self._names.name_of(labelled.version)
        read = self._kept.read_from(
            labelled.version,
            generation.beginning,
            found_cached=found_cached,
            has_media=generation.has_media,
        )
        return Span(
            name.version,
            labelled.start,
            labelled.end,
            kv_from=self._names.name_of(read) if read is not None else None,
            adapter=self.adapter,
            run_id=name.run_id,
            digest=name.digest,
            scope=name.scope,
        )

    def _count(self, index: int, choice: Any, *, is_delta: bool) -> None:
        ids, logprobs = choice.token_ids, choice.logprobs
        before = self._counts.get(index, 0) if is_delta else 0
        self._counts[index] = before + len(ids)
        if logprobs is not None and len(logprobs) != len(ids):
            self.is_uneven = True


_current: ContextVar[Tokens | None] = ContextVar("rlfleet_tokens", default=None)


@contextmanager
def collecting(
    names: WeightNames,
    name: Callable[[], WeightName | None],
    kept: KeptCache,
    adapter_name: Callable[[str], WeightName] = weight_name_of,
) -> Iterator[Tokens]:
    """Collect the tokens that `generate` yields inside this block.

    Args:
        names: Weights of the engine's labels.
        name: Returns the name of the weights in the engine now.
        kept: KV cache of older weights.
        adapter_name: Returns the weights of an adapter from its name in the engine.
    """
    tokens = Tokens(names, name, kept, adapter_name)
    mark = _current.set(tokens)
    try:
        yield tokens
    finally:
        _current.reset(mark)


def tracked(
    generate: Generate, names: WeightNames, *, is_drained: Callable[[], bool] = lambda: False
) -> Generate:
    """Wrap the engine client's `generate` so that its tokens are collected.

    Args:
        generate: The engine client's method.
        names: Weights of the engine's labels.
        is_drained: Whether requests that end now have exceeded the drain timeout.
    """

    def watched(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if _BEAM.search(request_id):
            raise ValueError(
                "beam search is not supported: its tokens cannot be attributed to a version"
            )
        outputs = generate(prompt, sampling_params, request_id, **options)
        tokens = _current.get()
        generation = (
            tokens.begin(prompt, sampling_params, request_id) if tokens is not None else None
        )
        return _seen(outputs, names, tokens, generation, is_drained)

    return watched


async def _seen(
    outputs: AsyncGenerator[Any, None],
    names: WeightNames,
    tokens: Tokens | None,
    generation: Generation | None,
    is_drained: Callable[[], bool],
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            if tokens is not None and generation is not None:
                tokens.see(output, generation)
            for choice in output.outputs:
                _unlabel(choice, names)
                if choice.finish_reason == _ABORT and is_drained():
                    choice.stop_reason = DRAINED
            yield output


def has_media(prompt: Any) -> bool:
    """Return whether a prompt is for a multimodal encoder, too.

    Source: `PromptType`, `EngineInput` and `EngineCoreRequest`, vLLM 0.32.
    """
    if not isinstance(prompt, Mapping):
        return bool(getattr(prompt, "mm_features", None))
    parts = (prompt.get("encoder_prompt"), prompt.get("decoder_prompt"))
    return any(prompt.get(key) for key in _MEDIA) or any(has_media(part) for part in parts if part)


def _unlabel(choice: Any, names: WeightNames) -> None:
    """Put versions in the place of the engine's labels."""
    if choice.weight_versions is not None:
        choice.weight_versions = [
            type(s)(version=names.name_of(s.version).version, start=s.start, end=s.end)
            for s in choice.weight_versions
        ]
