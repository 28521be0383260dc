"""Parameters and results of vLLM for the canary prompts.

Source: `SamplingParams` and `RequestOutput`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from typing import Any

from fleet_worker.engine.records import Position


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
    module = importlib.import_module("vllm.sampling_params")
    final = module.RequestOutputKind.FINAL_ONLY
    return module.SamplingParams(temperature=0.0, output_kind=final, detokenize=False, **options)
