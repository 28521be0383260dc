"""Remarks on checkpoints that fit."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_worker.checkpoint.remarks import MOST_CHARACTERS, Defaults, remarks_on
from fleet_worker.checkpoint.texts import Texts

MODEL = Defaults(
    {"eos_token_id": 7, "temperature": None},
    Texts(
        {"eos_token_id": [9, 7], "temperature": 0.7, "top_k": 20}, "{{ messages }}", {"1": "<end>"}
    ),
)


def remarks(
    generation: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    *,
    unread_keys: tuple[str, ...] = (),
    cast: str = "",
    **texts: Any,
) -> tuple[str, ...]:
    offered = Defaults(config or {}, Texts(generation or {}, **texts))
    return remarks_on(model=MODEL, offered=offered, unread_keys=unread_keys, cast=cast)


@pytest.mark.parametrize(
    ("generation", "config"),
    [
        pytest.param({}, {}, id="weights only"),
        pytest.param({}, {"eos_token_id": 7}, id="the config of the model"),
        pytest.param({}, {"eos_token_id": [7, 9]}, id="the config has all end tokens"),
        pytest.param(MODEL.texts.generation, MODEL.config, id="the same files"),
        pytest.param({"eos_token_id": [7, 9, 9]}, {}, id="the same end tokens in another order"),
        pytest.param(
            {"eos_token_id": [7, 9]}, {"eos_token_id": 1}, id="config.json does not count"
        ),
        pytest.param({"temperature": 0.7}, {"eos_token_id": 7}, id="keys left out"),
        pytest.param({"top_k": None}, {}, id="null"),
        pytest.param(
            {"pad_token_id": 3, "do_sample": True, "bos_token_id": 2}, {}, id="no default"
        ),
    ],
)
def test_the_models_end_tokens_and_defaults_need_no_remark(
    generation: dict[str, Any], config: dict[str, Any]
) -> None:
    assert remarks(generation, config) == ()


@pytest.mark.parametrize(
    ("generation", "config", "words"),
    [
        pytest.param(
            {"eos_token_id": 7}, {}, "eos_token_id [7], where the model has [7, 9]", id="fewer"
        ),
        pytest.param({}, {"eos_token_id": 3}, "eos_token_id [3]", id="in config.json"),
        pytest.param(
            {"temperature": 1.0}, {}, "temperature 1.0, where the model has 0.7", id="hot"
        ),
        pytest.param({"top_p": 0.9}, {}, "top_p 0.9, where the model has null", id="a new default"),
        pytest.param({"top_k": 0}, {}, "top_k 0", id="zero is a value"),
        pytest.param({"max_new_tokens": 64}, {}, "max_new_tokens 64", id="a length"),
        pytest.param({"eos_token_id": "seven"}, {}, 'eos_token_id "seven"', id="of another type"),
        pytest.param({"eos_token_id": [[7]]}, {}, "eos_token_id [[7]]", id="nested"),
    ],
)
def test_other_end_tokens_and_defaults_are_named_as_ignored(
    generation: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    (remark,) = remarks(generation, config)

    assert words in remark


def test_each_kind_has_a_remark_of_bounded_length() -> None:
    keys = tuple(f"key_{number}" * 20 for number in range(1000))
    found = remarks({"top_p": ["x" * 9999]}, unread_keys=keys, cast="2 tensors from F32 to BF16")

    assert len(found) == 3
    assert "1000 keys" in found[0]
    assert "2 tensors from F32 to BF16" in found[2]
    assert all(len(remark) <= MOST_CHARACTERS for remark in found)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"template": "{{ other }}"}, "the chat template"),
        ({"added_tokens": {"1": "<end>", "2": "<tool>"}}, "the added tokens"),
        ({"unreadable": ("generation_config.json",)}, "generation_config.json"),
    ],
    ids=str,
)
def test_texts_of_a_version_that_are_ignored_are_named(texts: dict[str, Any], words: str) -> None:
    (remark,) = remarks(**texts)

    assert words in remark
    assert "ignored" in remark.lower()


@pytest.mark.parametrize(
    "texts", [{}, {"template": "{{ messages }}"}, {"added_tokens": {"1": "<end>"}}], ids=str
)
def test_the_models_template_and_added_tokens_need_no_remark(texts: dict[str, Any]) -> None:
    assert remarks(**texts) == ()


def test_a_remark_has_no_letters_that_a_condition_cannot_show() -> None:
    (remark,) = remarks(unread_keys=("\x1b[31m", "ключ\n"))

    assert remark.isprintable()
    assert remark.isascii()


def test_keys_are_named_in_the_same_order_each_time() -> None:
    assert remarks(unread_keys=("b", "a")) == remarks(unread_keys=("a", "b"))
