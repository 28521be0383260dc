"""Collects the weight versions of a request's tokens between the engine and the reply.

vLLM's serving code drops them on the OpenAI routes. `tracked` wraps the engine client's `generate`,
from which every route gets its tokens. `collecting` opens a collection for one request. `generate`
runs somewhere below it and finds the collection in a context variable.

The engine's labels stop here: vLLM's serving code gets plain versions.
"""

from __future__ import annotations

import re
from collections import defaultdict
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
        last: the same of the latest one, if the tokens follow the weights.
        adapter: the adapter that the request uses, if it uses one.
        request_ids: the ids of the request in the engine, one a prompt.
        is_uneven: a choice has different numbers of tokens, log-probabilities and labels.
        has_news: one of the fields above has changed, and the reply has not acted on it yet. Most
            tokens bring no news.
        follows: the weights of each token are news, as the reply demands some. The spans name all
            of them at the end in any case.
    """

    __slots__ = (
        *("adapter", "first", "follows", "has_news", "is_uneven", "last", "name_now"),
        *("request_ids", "spans", "_adapter_name", "_choices", "_kept", "_names", "_prompts"),
        "_without_tokens",
    )

    def __init__(
        self,
        names: WeightNames,
        name: Callable[[], WeightName | None],
        kept: KeptCache,
        adapter_name: Callable[[str], WeightName] = weight_name_of,
        *,
        follows: bool = True,
    ) -> None:
        self.follows = follows
        self.spans: dict[int, list[Span] | None] = {}
        self.first: WeightName | None = None
        self.last: WeightName | None = None
        self.adapter: WeightName | None = None
        self.request_ids: list[str] = []
        self.is_uneven = False
        self.has_news = False
        self.name_now = name
        self._names = names
        self._kept = kept
        self._adapter_name = adapter_name
        self._prompts = 0
        self._choices = 0
        self._without_tokens = 0

    @property
    def is_without_tokens(self) -> bool:
        """Whether the engine has ended all choices before their first token."""
        return 0 < self._choices == self._without_tokens

    @property
    def is_of_one_choice(self) -> bool:
        """Whether the reply has one choice, as nearly all have."""
        return self._choices == 1

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

    def change_weights(self, name: WeightName | None, lora_request: Any) -> None:
        """The tokens that arrive from now on may be of other weights than those before.

        Args:
            name: The weights in the engine.
            lora_request: The adapter of the request, as vLLM's outputs name it.
        """
        self.last = name
        if self.first is None:
            self.first = name
        if lora_request is not None:
            self.adapter = self._adapter_name(lora_request.lora_name)
        self.has_news = True

    def end(self, choice: Any, generation: Generation, *, tokens: int, found_cached: bool) -> None:
        """A choice has ended. Its last output (`CompletionOutput`) has the labels of all its tokens.

        Args:
            choice: The last output.
            generation: The generation that it belongs to.
            tokens: How many tokens of the choice the reply has got.
            found_cached: Whether parts of the prompt may have come from the cache.
        """
        if choice.finish_reason == _ABORT and not tokens:
            self._without_tokens += 1
        spans = choice.weight_versions
        self.spans[generation.first_choice + choice.index] = (
            None
            if spans is None
            else [self._span(s, generation, found_cached=found_cached) for s in spans]
        )
        if spans and spans[-1].end != tokens:
            self.is_uneven = True
        self.has_news = True

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


_current: ContextVar[Tokens | None] = ContextVar("rlfleet_tokens", default=None)


@contextmanager
def collecting(
    names: WeightNames,
    name: Callable[[], WeightName | None],
    kept: KeptCache,
    adapter_name: Callable[[str], WeightName] = weight_name_of,
    *,
    follows: bool = True,
) -> Iterator[Tokens]:
    """Collect the tokens that `generate` yields inside this block.

    Args:
        names: Weights of the engine's labels.
        name: Returns the name of the weights in the engine now.
        kept: KV cache of older weights.
        adapter_name: Returns the weights of an adapter from its name in the engine.
        follows: See `Tokens`.
    """
    tokens = Tokens(names, name, kept, adapter_name, follows=follows)
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
        if tokens is None:  # a request of the worker itself
            return _unlabelled(outputs, names)
        generation = tokens.begin(prompt, sampling_params, request_id)
        return _watched(outputs, tokens, generation, names, is_drained)

    return watched


_NO_NAME_YET = object()  # None is a name: of weights that cannot be trusted


async def _watched(
    outputs: AsyncGenerator[Any, None],
    tokens: Tokens,
    generation: Generation,
    names: WeightNames,
    is_drained: Callable[[], bool],
) -> AsyncGenerator[Any, None]:
    """Pass outputs on (`RequestOutput`), and tell the tokens what changes.

    This runs for each token of a stream, and the process is the limit on a GPU. So it compares and
    counts, and calls others only at a change: vLLM itself notes which weights made which tokens, and
    says so with the last one.
    """
    name_now, follows, is_delta = tokens.name_now, tokens.follows, generation.is_delta
    name: object = _NO_NAME_YET
    counts: defaultdict[int, int] = defaultdict(int)
    async with aclosing(outputs):
        # The others come from another iterator: see `engine.vllm_requests`.
        for is_first in (True, False):
            async for output in outputs:
                if (is_first or follows) and (now := name_now()) is not name:
                    name = now
                    tokens.change_weights(now, output.lora_request)
                for choice in output.outputs:
                    index, new, logprobs = choice.index, len(choice.token_ids), choice.logprobs
                    counts[index] = counts[index] + new if is_delta else new
                    if logprobs is not None and len(logprobs) != new:
                        tokens.is_uneven = tokens.has_news = True
                    if choice.finish_reason is not None:
                        # 0 cached tokens mean that nothing came from the cache. None means unknown.
                        cached = output.num_cached_tokens != 0
                        tokens.end(choice, generation, tokens=counts[index], found_cached=cached)
                        if choice.finish_reason == _ABORT and is_drained():
                            choice.stop_reason = DRAINED
                    if choice.weight_versions is not None:
                        _unlabel(choice, names)
                yield output
                if is_first:
                    break
            else:
                return


async def _unlabelled(
    outputs: AsyncGenerator[Any, None], names: WeightNames
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            for choice in output.outputs:
                if choice.weight_versions is not None:
                    _unlabel(choice, names)
            yield output


def has_media(prompt: Any) -> bool:
    """Return whether a prompt is for a multimodal encoder, too.

    Source: `PromptType`, `EngineInput` and `EngineCoreRequest` of vLLM.
    """
    if not isinstance(prompt, Mapping):
        return bool(getattr(prompt, "mm_features", None))
    parts = (prompt.get("encoder_prompt"), prompt.get("decoder_prompt"))
    return any(prompt.get(key) for key in _MEDIA) or any(has_media(part) for part in parts if part)


def _unlabel(choice: Any, names: WeightNames) -> None:
    """Put versions in the place of the engine's labels."""
    choice.weight_versions = [
        type(s)(version=names.name_of(s.version).version, start=s.start, end=s.end)
        for s in choice.weight_versions
    ]
