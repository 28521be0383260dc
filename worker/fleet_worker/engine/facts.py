"""Facts about the served model and its tokenizer: what the public routes need, and the bytes of tokens.

A token may be a part of a letter. Decoded alone it becomes U+FFFD or nothing, so that different tokens
look the same. Their bytes always differ. Tokenizers write bytes in token names in two ways:

* Byte level (GPT-2 and later): every byte has a printable letter, `Ġ` is a space.
* SentencePiece: `▁` is a space, `<0xE2>` a byte without a piece of its own.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol


class Vocabulary(Protocol):
    """The part of the tokenizer that replies need."""

    def knows(self, token_id: int) -> bool:
        """Return whether the id is one of the tokenizer's."""

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, possibly a part of a letter; None if they are not known."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the served model.

    Fields:
        names: returns the valid values of `model` in requests: the model and its adapters.
        max_length: largest number of tokens of prompt and completion together.
        id_limit: all ids of the model and its tokenizer are below it.
        vocabulary: its tokenizer.
        generate_keys / sampling_keys: fields that vLLM accepts in a body of
            `/inference/v1/generate`, and in its `sampling_params`.
        routes_experts: whether replies contain the routed experts of the tokens.
    """

    names: Callable[[], Sequence[str]]
    max_length: int
    id_limit: int
    vocabulary: Vocabulary
    generate_keys: frozenset[str]
    sampling_keys: frozenset[str]
    routes_experts: bool = False


_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_byte_level(piece: str) -> bytes | None:
    """Return the bytes of a token of a byte-level vocabulary; None for other names."""
    letters = _byte_letters()
    found = [letters.get(letter) for letter in piece]
    return None if None in found else bytes(byte for byte in found if byte is not None)


def bytes_of_sentence_piece(piece: str) -> bytes:
    """Return the bytes of a token of a SentencePiece vocabulary."""
    if (byte := _BYTE_PIECE.fullmatch(piece)) is not None:
        return bytes([int(byte.group(1), 16)])
    return piece.replace("▁", " ").encode()


def text_of(raw: bytes) -> str:
    r"""Return the text of a token's bytes, with a part of a letter as `\xe2`.

    So two tokens that are parts of letters differ, and no text is empty.
    """
    return raw.decode("utf-8", errors="backslashreplace")


class Offsets:
    """Counts the position of each token in the whole text, in letters.

    A letter in parts belongs to the token that completes it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._letters = 0

    def next(self, raw: bytes) -> int:
        """Take the bytes of the next token; return its position."""
        begin = self._letters
        self._letters += len(self._decoder.decode(raw))
        return begin


@cache
def _byte_letters() -> dict[str, int]:
    """Return letter → byte. Printable bytes of Latin-1 are themselves, others begin at U+0100.

    Source: `bytes_to_unicode` of GPT-2's encoder, which all byte-level tokenizers copy.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(others)}
