"""Texts and bytes of tokens."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fleet_worker.engine.facts import Offsets, bytes_of_byte_level, bytes_of_sentence_piece, text_of
from fleet_worker.engine.vllm_facts import TokenizerVocabulary


@pytest.mark.parametrize(
    ("piece", "raw"),
    [
        ("a", b"a"),
        ("Ġthe", b" the"),
        ("Ċ", b"\n"),
        ("âĤ¬", "€".encode()),
        ("âĤ", b"\xe2\x82"),
        ("Ń", b"\xad"),
        ("€", None),
    ],
)
def test_characters_of_a_byte_level_vocabulary_decode_to_bytes(
    piece: str, raw: bytes | None
) -> None:
    assert bytes_of_byte_level(piece) == raw


def test_each_byte_has_its_own_character() -> None:
    from fleet_worker.engine.facts import _byte_letters  # noqa: PLC0415 - of this test only

    assert sorted(_byte_letters().values()) == list(range(256))


@pytest.mark.parametrize(
    ("piece", "raw"),
    [("▁the", b" the"), ("<0xE2>", b"\xe2"), ("<0xE2", b"<0xE2"), ("é", "é".encode())],
)
def test_sentence_piece_tokens_are_text_or_one_byte(piece: str, raw: bytes) -> None:
    assert bytes_of_sentence_piece(piece) == raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b" a", " a"), ("€".encode(), "€"), (b"\xe2\x82", r"\xe2\x82"), (b" \x9e", r" \x9e")],
)
def test_partial_characters_are_written_as_bytes(raw: bytes, text: str) -> None:
    assert text_of(raw) == text


def test_the_offset_of_a_partial_character_is_where_the_text_ended() -> None:
    offsets = Offsets()

    assert [offsets.next(raw) for raw in (b"ab", b"\xe2", b"\x82", b"\xac", b"c")] == [
        0,
        2,
        2,
        2,
        3,
    ]


class FakeTokenizer:
    """A fast tokenizer, as far as the worker reads it."""

    def __init__(self, decoder: dict[str, Any] | None, names: dict[int, str]) -> None:
        self.names = names
        self.added_tokens_decoder = {9: SimpleNamespace(content="<|end|>")}
        if decoder is not None:
            state = SimpleNamespace(__getstate__=lambda: json.dumps(decoder).encode())
            self.backend_tokenizer = SimpleNamespace(decoder=state)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.names.get(each) for each in ids]

    def decode(self, ids: list[int]) -> str:
        return "".join("\N{REPLACEMENT CHARACTER}" if i == 3 else f"t{i}" for i in ids)


BYTE_LEVEL = {"type": "ByteLevel"}
LLAMA = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}


@pytest.mark.parametrize(
    ("decoder", "names", "expected"),
    [
        pytest.param(BYTE_LEVEL, {1: "Ġa", 3: "âĤ"}, {1: b" a", 3: b"\xe2\x82"}, id="byte level"),
        pytest.param(LLAMA, {1: "▁a", 3: "<0xE2>"}, {1: b" a", 3: b"\xe2"}, id="SentencePiece"),
        pytest.param({"type": "WordPiece"}, {1: "a", 3: "b"}, {1: b"t1", 3: None}, id="another"),
        pytest.param(None, {1: "a", 3: "b"}, {1: b"t1", 3: None}, id="no decoder to ask"),
    ],
)
def test_a_vocabulary_is_read_by_its_decoder(
    decoder: dict[str, Any] | None, names: dict[int, str], expected: dict[int, bytes | None]
) -> None:
    vocabulary = TokenizerVocabulary(FakeTokenizer(decoder, {**names, 9: "x"}))

    assert {token_id: vocabulary.bytes_of(token_id) for token_id in names} == expected
    assert vocabulary.bytes_of(9) == b"<|end|>", "added tokens are what they say"
    assert vocabulary.bytes_of(7) is None


def test_an_id_without_a_token_is_unknown() -> None:
    vocabulary = TokenizerVocabulary(FakeTokenizer(BYTE_LEVEL, {1: "a"}))

    assert vocabulary.knows(1)
    assert not vocabulary.knows(7)


@pytest.mark.parametrize("error", [IndexError, KeyError, OverflowError, ValueError])
def test_an_id_is_unknown_if_the_tokenizer_raises(error: type[Exception]) -> None:
    tokenizer = FakeTokenizer(BYTE_LEVEL, {})

    def convert(_ids: list[int]) -> list[str]:
        raise error

    tokenizer.convert_ids_to_tokens = convert
    assert not TokenizerVocabulary(tokenizer).knows(1)
