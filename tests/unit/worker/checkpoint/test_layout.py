"""Which files hold a checkpoint's weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_worker.checkpoint.format import (
    TensorSpec,
    all_tensors,
    check_index,
    parse_index,
    weight_files,
)
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def index(**weight_map: Any) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


def spec(name: str) -> TensorSpec:
    return TensorSpec(name, "F32", (1,), 8, 12)


@pytest.mark.parametrize(
    ("names", "content", "files"),
    [
        pytest.param(
            {"model.safetensors", "x.safetensors"}, None, ("model.safetensors",), id="one"
        ),
        pytest.param(
            {"b.safetensors", "a.safetensors"}, None, ("a.safetensors", "b.safetensors"), id="all"
        ),
        pytest.param(
            {"a.safetensors", "b.safetensors", "model.safetensors"},
            index(x="b.safetensors", y="a.safetensors", z="b.safetensors"),
            ("a.safetensors", "b.safetensors"),
            id="those of the index, once each",
        ),
        pytest.param(
            {"model.safetensors", "pytorch_model.bin"},
            None,
            ("model.safetensors",),
            id="no pickles",
        ),
    ],
)
def test_weight_files_are_chosen_as_loaders_choose_them(
    names: set[str], content: bytes | None, files: tuple[str, ...]
) -> None:
    assert weight_files(names, content) == files


@pytest.mark.parametrize(
    ("names", "content", "reason"),
    [
        pytest.param(set(), None, Reason.SOURCE_NOT_FOUND, id="an empty directory"),
        pytest.param({"config.json"}, None, Reason.SOURCE_NOT_FOUND, id="no weights"),
        pytest.param({"pytorch_model.bin"}, None, Reason.CHECKPOINT_MALFORMED, id="a pickle"),
        pytest.param({"consolidated.00.pth"}, None, Reason.CHECKPOINT_MALFORMED, id="another"),
        pytest.param(
            {"a.safetensors"}, index(x="b.safetensors"), Reason.SOURCE_NOT_FOUND, id="no shard"
        ),
    ],
)
def test_a_directory_without_weight_files_is_refused(
    names: set[str], content: bytes | None, reason: Reason
) -> None:
    with pytest.raises(Refusal) as refused:
        weight_files(names, content)

    assert refused.value.reason is reason


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"{}", id="no map"),
        pytest.param(index(), id="an empty map"),
        pytest.param(b'{"weight_map": [1]}', id="a list"),
        pytest.param(index(x="../a.safetensors"), id="a way out"),
        pytest.param(index(x="/etc/a.safetensors"), id="an absolute path"),
        pytest.param(index(x="a.bin"), id="a pickle"),
    ],
)
def test_an_invalid_index_is_malformed(content: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse_index(content)

    assert refused.value.reason is Reason.CHECKPOINT_MALFORMED


def test_a_tensor_in_two_files_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        all_tensors({"a.safetensors": [spec("x")], "b.safetensors": [spec("y"), spec("x")]})

    assert refused.value.reason is Reason.CHECKPOINT_MALFORMED
    assert "'x'" in refused.value.message


def test_an_index_that_matches_its_files_passes() -> None:
    check_index({"x": "a", "y": "b"}, {"a": [spec("x")], "b": [spec("y")]})


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({"x": "a"}, id="a tensor left out"),
        pytest.param({"x": "a", "y": "b", "z": "b"}, id="a tensor invented"),
        pytest.param({"x": "b", "y": "a"}, id="files exchanged"),
    ],
)
def test_an_index_that_does_not_match_its_files_is_refused(index: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        check_index(index, {"a": [spec("x")], "b": [spec("y")]})
