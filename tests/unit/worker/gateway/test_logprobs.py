"""Naming the tokens of log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_server import FakeVocabulary

from fleet_worker.engine.facts import Offsets
from fleet_worker.gateway.tokens.logprobs import LengthError, id_of, name_entries, name_lists

BYTES_OF = FakeVocabulary().bytes_of


def entry(token_id: int, *candidates: int) -> dict[str, Any]:
    return {
        "token": f"token_id:{token_id}",
        "logprob": -1.0,
        "bytes": None,
        "top_logprobs": [{"token": f"token_id:{i}", "logprob": -2.0} for i in candidates],
    }


def test_an_entry_gets_its_id_text_and_bytes() -> None:
    entries = [entry(97, 98, 0xE2), entry(0xE2)]
    name_entries(entries, [97, 0xE2], BYTES_OF, as_ids=False)

    assert [(e["token_id"], e["token"], e["bytes"]) for e in entries] == [
        (97, "a", [97]),
        (0xE2, r"\xe2", [0xE2]),
    ]
    assert [(e["token_id"], e["token"]) for e in entries[0]["top_logprobs"]] == [
        (98, "b"),
        (0xE2, r"\xe2"),
    ]


def test_token_names_are_ids_if_the_client_asks_for_them() -> None:
    entries = [entry(97, 98)]
    name_entries(entries, [97], BYTES_OF, as_ids=True)

    assert (entries[0]["token"], entries[0]["bytes"]) == ("token_id:97", [97])
    assert entries[0]["top_logprobs"][0]["token"] == "token_id:98"


def test_a_token_without_text_is_named_by_its_id() -> None:
    entries = [entry(300)]
    name_entries(entries, [300], BYTES_OF, as_ids=False)

    assert (entries[0]["token"], entries[0]["bytes"]) == ("token_id:300", None)


def lists(*ids: int, top: list[Any] | None = None) -> dict[str, Any]:
    names = [f"token_id:{i}" for i in ids]
    return {
        "tokens": names,
        "token_logprobs": [-1.0] * len(ids),
        "top_logprobs": top or [None] * len(ids),
        "text_offset": [0] * len(ids),
    }


def test_lists_get_texts_and_text_offsets() -> None:
    offsets = Offsets()
    first = lists(97, 0xC3, top=[{"token_id:97": -1.0, "token_id:98": -2.0}, None])
    name_lists(first, BYTES_OF, offsets)
    second = lists(0xA9, 98)
    name_lists(second, BYTES_OF, offsets)

    assert first["tokens"] == ["a", r"\xc3"]
    assert first["top_logprobs"] == [{"a": -1.0, "b": -2.0}, None]
    assert [*first["text_offset"], *second["text_offset"]] == [0, 1, 1, 2]


def test_two_candidates_with_the_same_text_are_kept() -> None:
    found = lists(97, top=[{"token_id:97": -1.0, "token_id:65": -2.0}])
    name_lists(found, lambda _: b"a", Offsets())

    assert found["top_logprobs"] == [{"a": -1.0, "token_id:65": -2.0}]


@pytest.mark.parametrize("name", ["a", "token_id:", "token_id:a", "token_id:-1", ""])
def test_a_value_that_is_not_an_id_is_never_used_as_one(name: str) -> None:
    with pytest.raises(LengthError):
        id_of(name)
