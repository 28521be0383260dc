"""What a token stands for, in bytes: the one form in which no token is lost.

A tokenizer's token may be a part of a letter. Decoded alone it becomes U+FFFD or nothing, and
different tokens become the same; its bytes are always its own. Two ways of writing bytes as a
token's name are in use:

* byte level (GPT-2 and what came after): every byte has a printable letter, `Ġ` is a space;
* SentencePiece: `▁` is a space, `<0xE2>` a byte that no piece has.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_byte_level(piece: str) -> bytes | None:
    """Bytes of a token of a byte-level vocabulary; None if its name is not of that kind."""
    letters = _byte_letters()
    found = [letters.get(letter) for letter in piece]
    return None if None in found else bytes(byte for byte in found if byte is not None)


def bytes_of_sentence_piece(piece: str) -> bytes:
    """Bytes of a token of a SentencePiece vocabulary."""
    if (byte := _BYTE_PIECE.fullmatch(piece)) is not None:
        return bytes([int(byte.group(1), 16)])
    return piece.replace("▁", " ").encode()


def text_of(raw: bytes) -> str:
    r"""The text of some bytes; those that are a part of a letter are written as `\xe2`.

    So two tokens never look the same because both are parts of letters, and none is empty.
    """
    return raw.decode("utf-8", errors="backslashreplace")


class Offsets:
    """Counts where the text of each token begins, in letters of the whole text.

    A letter that comes in parts belongs to the token that completes it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._letters = 0

    def next(self, raw: bytes) -> int:
        """Take the next token; returns where it begins."""
        begin = self._letters
        self._letters += len(self._decoder.decode(raw))
        return begin


@cache
def _byte_letters() -> dict[str, int]:
    """Letter → byte: printable bytes of Latin-1 are themselves, the others follow from U+0100 on.

    Source: `bytes_to_unicode` of GPT-2's encoder, which all byte-level tokenizers copy.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(others)}
