"""`/inference/v1/generate`: vLLM's own token route, strict about its keys.

vLLM silently drops unknown keys of `sampling_params`. One of them is `cache_salt`, without which a
request may read keys and values of older weights.

Log-probabilities suit both generations of clients: vLLM writes an integer `token_id`,
and renderers up to 0.1.12 read `"token": "token_id:5"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet_worker.gateway.tokens.logprobs import name_sampled
from fleet_worker.gateway.tokens.reply import experts_of
from fleet_worker.gateway.tokens.request import checked_ids, one_of
from fleet_worker.gateway.translation import Facts, Forward, Json, Reply
from fleet_worker.http.asgi import bad_request
from fleet_worker.protocol import TOKEN_ROUTE

# As vLLM writes it: first in its object, without spaces. It cannot be inside a string, where its
# quotes would be escaped. Replacing it takes a hundredth of the time of parsing the reply.
_ENTRY = re.compile(rb'\{"token_id":(\d+),')


def _named(entry: re.Match[bytes]) -> bytes:
    """The entry's beginning, with the name. A function: `re` takes three times as long with a template."""
    number = entry[1]
    return b'{"token_id":%b,"token":"token_id:%b",' % (number, number)


def reply_of(request: Json, facts: Facts) -> Reply:
    """Return the changes of the reply to a request of tokens."""
    sampling = request.get("sampling_params")
    sampling = sampling if isinstance(sampling, dict) else {}
    experts = experts_of(sampling, facts)
    if request.get("output_mode") == "text":

        def name(reply: Json) -> Json:
            for choice in reply.get("choices") or ():
                if choice.get("logprobs") is not None:
                    entries, ids = choice["logprobs"]["content"], choice["token_ids"]
                    name_sampled(entries, ids, facts.vocabulary.bytes_of)
            return reply

        return Reply(is_stamped=True, patch=experts, whole=name, chunk=name)
    if sampling.get("logprobs") is None:
        return Reply(is_stamped=True, patch=experts)

    def patch(piece: bytes) -> bytes:
        piece = _ENTRY.sub(_named, piece)
        return piece if experts is None else experts(piece)

    return Reply(is_stamped=True, patch=patch)


# Clients put these into `sampling_params`, where vLLM would drop them.
_LIFTED = ("cache_salt", "priority", "return_token_ids")
# Clients put this one outside of them.
_SUNK = ("routed_experts_prompt_start",)
_OF_THE_ENGINE = {
    "trace_decode_token_ids": "its tokens would carry the label of weights that did not make them",
    "output_kind": "the route decides about it",
    "output_text_buffer_length": "the engine computes it",
    "skip_clone": "the engine decides about it",
}


def translate(_path: str, body: Json, facts: Facts) -> Forward:
    """Put every key where vLLM reads it. Refuse unknown keys."""
    checked_ids(body.get("token_ids"), facts, "token_ids")
    sampling = body.get("sampling_params")
    sampling = dict(sampling) if isinstance(sampling, dict) else None
    request, moves = dict(body), False
    if sampling is not None:
        moves = not (sampling.keys().isdisjoint(_LIFTED) and body.keys().isdisjoint(_SUNK))
        lifted = [(key, sampling.pop(key, None)) for key in _LIFTED]
        request = one_of(request, lifted)
        sampling = one_of(sampling, [(key, request.pop(key, None)) for key in _SUNK])
        _check(sampling, facts.sampling_keys, "sampling_params.")
        for key, why in _OF_THE_ENGINE.items():
            if key in sampling:
                raise bad_request(f"sampling_params.{key} cannot be set: {why}")
        request["sampling_params"] = sampling
    _check(request, facts.generate_keys, "")
    return Forward(TOKEN_ROUTE, request if moves else None, reply_of(request, facts))


def _check(given: Iterable[str], known: frozenset[str], prefix: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        names = ", ".join(prefix + name for name in unknown)
        noun = "field" if len(unknown) == 1 else "fields"
        raise bad_request(f"unknown {noun}: {names}", prefix + unknown[0])
