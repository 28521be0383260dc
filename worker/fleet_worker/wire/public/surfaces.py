"""The one list of data surfaces: which requests are translated, and by whom.

The first row that fits is taken. A route of vLLM that stands nowhere here goes as it is.
"""

from __future__ import annotations

from fleet_worker.core.routes import TOKEN_ROUTE
from fleet_worker.wire.generate import request as _generate
from fleet_worker.wire.nvext import request as _nvext
from fleet_worker.wire.openai import request as _openai
from fleet_worker.wire.surface import Facts, Forward, Json, Translate
from fleet_worker.wire.token_chat import request as _token_chat
from fleet_worker.wire.tokenize import request as _tokenize

ROWS: tuple[tuple[str, str | None, Translate], ...] = (
    ("/v1/chat/completions", "nvext", _nvext.translate),
    ("/v1/completions", "nvext", _nvext.translate),
    ("/v1/chat/completions", "tokens", _token_chat.translate),
    ("/v1/chat/completions/tokens", None, _token_chat.translate),
    ("/v1/chat/completions", None, _openai.translate),
    ("/v1/chat/completions/batch", None, _openai.translate),
    ("/v1/completions", None, _openai.translate),
    (TOKEN_ROUTE, None, _generate.translate),
    ("/tokenize", None, _tokenize.tokenize),
    ("/v1/tokenize", None, _tokenize.tokenize),
    ("/detokenize", None, _tokenize.detokenize),
    ("/v1/detokenize", None, _tokenize.detokenize),
)
"""Path, a key that the request must have, and the surface."""


class Surfaces:
    """The surfaces of one worker."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._paths = frozenset(path for path, _, _ in ROWS)

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def translate(self, path: str, body: Json) -> Forward:
        """What to do with a request.

        Errors:
            WireError: it is not served.
        """
        for route, key, translate in ROWS:
            if route == path and (key is None or body.get(key) is not None):
                return translate(path, body, self._facts)
        raise KeyError(path)
