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
from typing import Any

from fleet_worker.core.spans import Span

Generate = Callable[..., AsyncGenerator[Any, None]]

# Beam search asks the engine for one token at a time and sews the winners together: no span of the
# engine says which of them came from which weights.
_BEAM = re.compile(r"-beam-\d+$")


class Tokens:
    """What is known of a request's tokens.

    Fields:
        spans: choice index → its spans, once the choice has ended.
        first_version: label in the engine when the first token arrived.
    """

    def __init__(self, version: Callable[[], str | None]) -> None:
        self.spans: dict[int, list[Span] | None] = {}
        self.first_version: str | None = None
        self._version = version
        self._prompts = 0

    def next_prompt(self) -> int:
        """Number of the prompt whose generation begins, in the order of the reply's choices."""
        self._prompts += 1
        return self._prompts - 1

    def see(self, output: Any, *, first_choice: int) -> None:
        """Take the versions from an output of the engine (`RequestOutput`)."""
        if self.first_version is None:
            self.first_version = self._version()
        for choice in output.outputs:
            if choice.finish_reason is None:
                continue
            spans = choice.weight_versions
            self.spans[first_choice + choice.index] = (
                None if spans is None else [Span(s.version, s.start, s.end) for s in spans]
            )


_current: ContextVar[Tokens | None] = ContextVar("rlfleet_tokens", default=None)


@contextmanager
def collecting(version: Callable[[], str | None]) -> Iterator[Tokens]:
    """Collect what `generate` yields inside of this block."""
    tokens = Tokens(version)
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
        first_choice = tokens.next_prompt() * (getattr(sampling_params, "n", 1) or 1)
        return _seen(outputs, tokens, first_choice)

    return watched


async def _seen(
    outputs: AsyncGenerator[Any, None], tokens: Tokens, first_choice: int
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            tokens.see(output, first_choice=first_choice)
            yield output
