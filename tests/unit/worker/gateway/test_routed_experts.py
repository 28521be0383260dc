"""Routed experts in the form that trainers' clients cut out of a reply."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.support.npy import npy

from fleet_worker.gateway.tokens.routed_experts import RoutedExpertsError, rewritten


def reply(*experts: str | None) -> bytes:
    content = {"choices": [{"index": n, "routed_experts": e} for n, e in enumerate(experts)]}
    return json.dumps(content, separators=(",", ":")).encode()


ROWS = bytes(range(12))


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [("|u1", (3, 2, 2), "uint8"), ("<u2", (3, 2, 1), "uint16"), ("<i4", (3, 1, 1), "int32")],
)
@pytest.mark.parametrize("version", [1, 2])
def test_an_npy_file_becomes_an_object_with_its_rows(
    kind: str, shape: tuple[int, ...], dtype: str, version: int
) -> None:
    changed = rewritten(reply(npy(kind, shape, ROWS, version=version)), 7)

    assert b'"routed_experts":{"data":"' in changed
    experts: dict[str, Any] = json.loads(changed)["choices"][0]["routed_experts"]
    assert base64.b64decode(experts.pop("data")) == ROWS
    assert experts == {"shape": list(shape), "start": 7, "dtype": dtype}


def test_every_choice_is_rewritten_and_null_stays_null() -> None:
    file = npy("|u1", (3, 2, 2), ROWS)
    found = json.loads(rewritten(reply(file, None, file), 0))["choices"]

    assert [isinstance(c["routed_experts"], dict) for c in found] == [True, False, True]


def test_the_same_text_inside_a_string_is_unchanged() -> None:
    text = json.dumps({"a": '"routed_experts":"AAAA"'}).encode()

    assert rewritten(text, 0) == text


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(base64.b64encode(b"something else").decode(), id="no file"),
        pytest.param(npy("<f4", (3, 1, 1), ROWS), id="another type"),
        pytest.param(npy("|u1", (12,), ROWS), id="another shape"),
    ],
)
def test_an_unknown_format_is_an_error(file: str) -> None:
    with pytest.raises(RoutedExpertsError):
        rewritten(reply(file), 0)
