"""Log-probabilities that clients of both generations read: `token_id` and `token`.

Since 0.32 vLLM writes an integer `token_id`; renderers up to 0.1.12 want `"token": "token_id:5"`.
"""

from __future__ import annotations

import re

from fleet_worker.core.logprobs import name_sampled
from fleet_worker.wire.surface import Facts, Json, Reply
from fleet_worker.wire.tokens.reply import experts_of

# As vLLM writes it: first in its object, without spaces. It cannot stand inside of a string, where
# its quotes would be escaped. Replacing it takes a hundredth of the time of parsing the reply.
_ENTRY = re.compile(rb'\{"token_id":(\d+),')
_NAMED = rb'{"token_id":\1,"token":"token_id:\1",'


def reply_of(request: Json, facts: Facts) -> Reply:
    """What becomes of the reply to a request of tokens."""
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
        piece = _ENTRY.sub(_NAMED, piece)
        return piece if experts is None else experts(piece)

    return Reply(is_stamped=True, patch=patch)
