"""The table of translated routes: each request and its dialect.

The first matching row wins. A route of vLLM without a row is passed on unchanged.
"""

from __future__ import annotations

from fleet_worker.gateway.translate import generate, nvext, openai, token_chat, tokenize
from fleet_worker.gateway.translation import Facts, Forward, Json, Translate
from fleet_worker.protocol import TOKEN_ROUTE

ROWS: tuple[tuple[str, str | None, Translate], ...] = (
    ("/v1/chat/completions", "nvext", nvext.translate),
    ("/v1/completions", "nvext", nvext.translate),
    ("/v1/chat/completions", "tokens", token_chat.translate),
    ("/v1/chat/completions/tokens", None, token_chat.translate),
    ("/v1/chat/completions", None, openai.translate),
    ("/v1/chat/completions/batch", None, openai.translate),
    ("/v1/completions", None, openai.translate),
    (TOKEN_ROUTE, None, generate.translate),
    ("/tokenize", None, tokenize.tokenize),
    ("/v1/tokenize", None, tokenize.tokenize),
    ("/detokenize", None, tokenize.detokenize),
    ("/v1/detokenize", None, tokenize.detokenize),
)
"""Path, a key that the request must have, and the translation."""


class Translations:
    """The translations of one worker."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._paths = frozenset(path for path, _, _ in ROWS)

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def translate(self, path: str, body: Json) -> Forward:
        """Return the request for vLLM.

        Errors:
            WireError: the request is refused.
        """
        for route, key, translate in ROWS:
            if route == path and (key is None or body.get(key) is not None):
                return translate(path, body, self._facts)
        raise KeyError(path)
