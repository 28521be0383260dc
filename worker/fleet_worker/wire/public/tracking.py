"""Catching the weight versions of a request's tokens on their way from the engine to the reply.

vLLM's serving code drops them on the OpenAI routes. `tracked` wraps the engine client's `generate`,
the one door through which every route gets its tokens; `collecting` opens a collection for the
request at hand, which `generate`, called somewhere below it, finds by a context variable.

No label of the engine passes this door: what goes on to vLLM's serving code has plain versions.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fleet_worker.core.engine_adapter import weight_name_of
from fleet_worker.core.kept_cache import Beginning, KeptCache
from fleet_worker.core.spans import Span
from fleet_worker.core.weight_names import WeightName, WeightNames

Generate = Callable[..., AsyncGenerator[Any, None]]

# Beam search asks the engine for one token at a time and sews the winners together: no span of the
# engine says which of them came from which weights.
_BEAM = re.compile(r"-beam-\d+$")


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt of a request, on its way through the engine.

    Fields:
        first_choice: index of its first choice in the reply.
        is_delta: every output holds what is new only, as it does for streams.
        beginning: what was true when it came to the engine.
    """

    first_choice: int
    is_delta: bool
    beginning: Beginning


class Tokens:
    """What is known of a request's tokens.

    Fields:
        spans: choice index → its spans, once the choice has ended.
        first: the weights in the engine when the first token arrived.
        last: the same of the latest one.
        adapter: the adapter that the request uses, if it uses one.
        is_uneven: a choice ended with other numbers of tokens, log-probabilities and labels.
    """

    def __init__(
        self, names: WeightNames, name: Callable[[], WeightName | None], kept: KeptCache
    ) -> None:
        self.spans: dict[int, list[Span] | None] = {}
        self.first: WeightName | None = None
        self.last: WeightName | None = None
        self.adapter: WeightName | None = None
        self.is_uneven = False
        self._names = names
        self._name = name
        self._kept = kept
        self._counts: dict[int, int] = {}
        self._prompts = 0

    @property
    def policy(self) -> WeightName | None:
        """The weights that a demand means: the adapter, or else those of the latest token."""
        return self.adapter or self.last

    def begin(self, sampling_params: Any) -> Generation:
        """The next prompt's generation begins; prompts come in the order of the reply's choices."""
        number, self._prompts = self._prompts, self._prompts + 1
        kind = getattr(sampling_params, "output_kind", None)
        return Generation(
            first_choice=number * (getattr(sampling_params, "n", 1) or 1),
            is_delta=getattr(kind, "name", "") == "DELTA",
            beginning=self._kept.begin(),
        )

    def see(self, output: Any, generation: Generation) -> None:
        """Take the versions from an output of the engine (`RequestOutput`)."""
        self.last = self._name()
        if self.first is None:
            self.first = self.last
        lora = output.lora_request
        if lora is not None:
            self.adapter = weight_name_of(lora.lora_name)
        for choice in output.outputs:
            index = generation.first_choice + choice.index
            self._count(index, choice, is_delta=generation.is_delta)
            if choice.finish_reason is None:
                continue
            # Of the prompt: 0 says that nothing came out of the cache, None says nothing.
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
            labelled.version, generation.beginning, found_cached=found_cached
        )
        return Span(
            name.version,
            labelled.start,
            labelled.end,
            kv_from=self._names.name_of(read) if read is not None else None,
            adapter=self.adapter,
            run_id=name.run_id,
            digest=name.digest,
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
    names: WeightNames, name: Callable[[], WeightName | None], kept: KeptCache
) -> Iterator[Tokens]:
    """Collect what `generate` yields inside of this block.

    Args:
        names: What the engine's labels stand for.
        name: What the weights in the engine are called now.
        kept: What older weights left in the engine's cache.
    """
    tokens = Tokens(names, name, kept)
    mark = _current.set(tokens)
    try:
        yield tokens
    finally:
        _current.reset(mark)


DRAINED = "drained"
"""`stop_reason` of a request that the worker has ended since its drain timeout was over. Its
`finish_reason` stays `abort`: trainers that send the rest of such a request again go by that.
"""
_ABORT = "abort"


def tracked(
    generate: Generate, names: WeightNames, *, is_drained: Callable[[], bool] = lambda: False
) -> Generate:
    """The engine client's `generate`, watched.

    Args:
        generate: The engine client's.
        names: What the engine's labels stand for.
        is_drained: Whether requests that are ended now have outlived a drain.
    """

    def watched(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if _BEAM.search(request_id):
            raise ValueError(
                "beam search is not served: its tokens cannot be told apart by weight version"
            )
        outputs = generate(prompt, sampling_params, request_id, **options)
        tokens = _current.get()
        generation = tokens.begin(sampling_params) if tokens is not None else None
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


def _unlabel(choice: Any, names: WeightNames) -> None:
    """Put versions in the place of the engine's labels."""
    if choice.weight_versions is not None:
        choice.weight_versions = [
            type(s)(version=names.name_of(s.version).version, start=s.start, end=s.end)
            for s in choice.weight_versions
        ]
