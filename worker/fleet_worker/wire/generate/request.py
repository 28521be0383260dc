"""A request of tokens, each key of which is taken or refused."""

from __future__ import annotations

from collections.abc import Iterable

from fleet_worker.core.routes import TOKEN_ROUTE
from fleet_worker.wire.errors import bad_request
from fleet_worker.wire.generate.reply import reply_of
from fleet_worker.wire.surface import Facts, Forward, Json
from fleet_worker.wire.tokens.request import checked_ids, one_of

# Clients put these into `sampling_params`, where vLLM would drop them.
_LIFTED = ("cache_salt", "priority", "return_token_ids")
# And this one outside of them.
_SUNK = ("routed_experts_prompt_start",)
_OF_THE_ENGINE = {
    "trace_decode_token_ids": "its tokens would carry the label of weights that did not make them",
    "output_kind": "the route decides about it",
    "output_text_buffer_length": "the engine computes it",
    "skip_clone": "the engine decides about it",
}


def translate(_path: str, body: Json, facts: Facts) -> Forward:
    """Put every key where vLLM reads it, or say that there is no such key."""
    checked_ids(body.get("token_ids"), facts, "token_ids")
    sampling = body.get("sampling_params")
    sampling = dict(sampling) if isinstance(sampling, dict) else None
    request = dict(body)
    if sampling is not None:
        lifted = [(key, sampling.pop(key, None)) for key in _LIFTED]
        request = one_of(request, lifted)
        sampling = one_of(sampling, [(key, request.pop(key, None)) for key in _SUNK])
        _check(sampling, facts.sampling_keys, "sampling_params.")
        for key, why in _OF_THE_ENGINE.items():
            if key in sampling:
                raise bad_request(f"sampling_params.{key} cannot be set: {why}")
        request["sampling_params"] = sampling
    _check(request, facts.generate_keys, "")
    return Forward(TOKEN_ROUTE, request, reply_of(request, facts))


def _check(given: Iterable[str], known: frozenset[str], prefix: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        names = ", ".join(prefix + name for name in unknown)
        raise bad_request(f"unknown: {names}; nothing would come of it", prefix + unknown[0])
