"""Asking vLLM for tokens, and reading what it says of them.

Source: `SamplingParams` and `RequestOutput`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from typing import Any

from fleet_worker.core.probing import Position


def greedy(max_tokens: int) -> Any:
    """Parameters for the most probable continuation."""
    return _parameters(max_tokens=max_tokens)


def scoring(most_probable: int) -> Any:
    """Parameters for log-probabilities of the prompt's own tokens and of the most probable ones."""
    return _parameters(max_tokens=1, prompt_logprobs=most_probable)


def positions_of(output: Any) -> tuple[Position, ...]:
    """What the prompt's tokens are given (of a `RequestOutput`); nothing is known of the first."""
    found = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return tuple(
        Position(
            int(token), {int(each): float(told.logprob) for each, told in (known or {}).items()}
        )
        for token, known in found
    )


def _parameters(**options: Any) -> Any:
    # Imported when it is used: vLLM takes seconds, and this module is read before it is started.
    module = importlib.import_module("vllm.sampling_params")
    final = module.RequestOutputKind.FINAL_ONLY
    return module.SamplingParams(temperature=0.0, output_kind=final, detokenize=False, **options)
