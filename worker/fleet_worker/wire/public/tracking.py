"""Catching the weight versions of a request's tokens on their way from the engine to the reply.

vLLM's serving code drops them on the OpenAI routes. `tracked` wraps the engine client's `generate`,
the one door through which every route gets its tokens; `collecting` opens a collection for the
request at hand, which `generate`, called somewhere below it, finds by a context variable.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fleet_worker.core.engine_adapter import version_of
from fleet_worker.core.kept_cache import Beginning, KeptCache
from fleet_worker.core.spans import Span

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
        first_version: label in the engine when the first token arrived.
        last_version: the same of the latest one.
        adapter: version of the adapter that the request uses, if it uses one.
        is_uneven: a choice ended with other numbers of tokens, log-probabilities and labels.
    """

    def __init__(self, version: Callable[[], str | None], kept: KeptCache | None = None) -> None:
        self.spans: dict[int, list[Span] | None] = {}
        self.first_version: str | None = None
        self.last_version: str | None = None
        self.adapter: str | None = None
        self.is_uneven = False
        self._version = version
        self._kept = kept or KeptCache()
        self._counts: dict[int, int] = {}
        self._prompts = 0

    @property
    def policy(self) -> str | None:
        """The version that a demand means: of the adapter, or else of the latest token."""
        return self.adapter or self.last_version

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
        self.last_version = self._version()
        if self.first_version is None:
            self.first_version = self.last_version
        lora = output.lora_request
        if lora is not None:
            self.adapter = version_of(lora.lora_name)
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
                else [
                    Span(
                        s.version,
                        s.start,
                        s.end,
                        self._kept.read_from(
                            s.version, generation.beginning, found_cached=found_cached
                        ),
                        self.adapter,
                    )
                    for s in spans
                ]
            )
            if spans and spans[-1].end != self._counts[index]:
                self.is_uneven = True

    def _count(self, index: int, choice: Any, *, is_delta: bool) -> None:
        ids, logprobs = choice.token_ids, choice.logprobs
        before = self._counts.get(index, 0) if is_delta else 0
        self._counts[index] = before + len(ids)
        if logprobs is not None and len(logprobs) != len(ids):
            self.is_uneven = True


_current: ContextVar[Tokens | None] = ContextVar("rlfleet_tokens", default=None)


@contextmanager
def collecting(
    version: Callable[[], str | None], kept: KeptCache | None = None
) -> Iterator[Tokens]:
    """Collect what `generate` yields inside of this block.

    Args:
        version: Label of the weights in the engine.
        kept: What older weights left in the engine's cache.
    """
    tokens = Tokens(version, kept)
    mark = _current.set(tokens)
    try:
        yield tokens
    finally:
        _current.reset(mark)


def tracked(generate: Generate) -> Generate:
    """The engine client's `generate`, watched."""

    def watched(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if _BEAM.search(request_id):
            raise ValueError(
                "beam search is not served: its tokens cannot be told apart by weight version"
            )
        outputs = generate(prompt, sampling_params, request_id, **options)
        tokens = _current.get()
        if tokens is None:
            return outputs
        return _seen(outputs, tokens, tokens.begin(sampling_params))

    return watched


async def _seen(
    outputs: AsyncGenerator[Any, None], tokens: Tokens, generation: Generation
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            tokens.see(output, generation)
            yield output
