"""The engine's tokenizer, as far as replies need it: which ids there are, and their bytes.

Source: `transformers` fast tokenizers (their decoder says how names of tokens are to be read). Of
a tokenizer of another kind only whole letters are known; parts of letters have no bytes there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fleet_worker.core.token_text import bytes_of_byte_level, bytes_of_sentence_piece

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerVocabulary:
    """A tokenizer's tokens. Answers are kept: there are as many as the vocabulary has tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {
            int(token_id): str(token.content)
            for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        }
        self._read = _reader(tokenizer)
        self._known: dict[int, bytes | None] = {}

    def knows(self, token_id: int) -> bool:
        """Whether an id stands for something."""
        return self._name(token_id) is not None

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token stands for; None if nobody can say."""
        if token_id not in self._known:
            self._known[token_id] = self._bytes_of(token_id)
        return self._known[token_id]

    def _bytes_of(self, token_id: int) -> bytes | None:
        if token_id in self._added:
            return self._added[token_id].encode()
        name = self._name(token_id)
        if name is None:
            return None
        found = self._read(name) if self._read is not None else None
        if found is not None:
            return found
        text = str(self._tokenizer.decode([token_id]))
        return text.encode() if text and _REPLACEMENT not in text else None

    def _name(self, token_id: int) -> str | None:
        try:
            (name,) = self._tokenizer.convert_ids_to_tokens([token_id])
        except (IndexError, KeyError, OverflowError, ValueError):
            return None  # slow tokenizers raise where fast ones answer None
        return None if name is None else str(name)


def _reader(tokenizer: Any) -> Callable[[str], bytes | None] | None:
    """How this tokenizer's names of tokens are read; None if by decoding only."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return None
    described = decoder.__getstate__().decode()
    kinds = set(_kinds(json.loads(described)))
    if "ByteLevel" in kinds:
        return bytes_of_byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return bytes_of_sentence_piece
    return None


def _kinds(description: Any) -> list[str]:
    """The kinds of a decoder and of those that it is made of."""
    if not isinstance(description, dict):
        return []
    inner = [kind for each in description.get("decoders", []) for kind in _kinds(each)]
    return [str(description.get("type")), *inner]
