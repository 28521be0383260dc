"""Reading safetensors headers, valid and invalid."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint.format import TensorSpec, header_length, parse_header
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import DTYPES, HEADER_LIMIT


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def parsed(header: Any, size: int) -> tuple[TensorSpec, ...]:
    encoded = json.dumps(header).encode()
    return parse_header(encoded, file="f", size=8 + len(encoded) + size)


def refused(header: Any, size: int) -> Reason:
    refusal = refusal_from(parsed, header, size)
    return refusal.reason


def test_a_header_has_the_position_of_each_tensor() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", [2, 2], 4, 12),
        "a": entry("F32", [1], 0, 4),
    }
    start = 8 + len(json.dumps(header).encode())

    assert parsed(header, 12) == (
        TensorSpec("a", "F32", (1,), start, start + 4),
        TensorSpec("b", "BF16", (2, 2), start + 4, start + 12),
    )


def test_scalars_and_empty_tensors_are_valid() -> None:
    largest = [0, *[2**63 - 1] * 63]
    specs = parsed({"s": entry("F32", [], 0, 4), "e": entry("F32", largest, 4, 4)}, 4)

    assert [spec.shape for spec in specs] == [(), tuple(largest)]


def test_four_and_six_bit_types_are_counted_in_bits() -> None:
    specs = parsed({"x": entry("F4", [3, 2], 0, 3), "y": entry("F6_E2M3", [4], 3, 6)}, 6)

    assert [spec.end - spec.begin for spec in specs] == [3, 3]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        pytest.param([], 0, id="no object"),
        pytest.param({"a": 1}, 0, id="an entry that is a number"),
        pytest.param({"__metadata__": 5}, 0, id="metadata that is a number"),
        pytest.param({"__metadata__": {"a": 5}}, 0, id="metadata of numbers"),
        pytest.param({"a": {"dtype": "F32", "shape": [1]}}, 4, id="no offsets"),
        pytest.param({"a": entry("F33", [1], 0, 4)}, 4, id="an unknown type"),
        pytest.param({"a": entry("F32", [2], 0, 4)}, 4, id="fewer bytes than elements"),
        pytest.param({"a": entry("F32", [-1], 0, 4)}, 4, id="a negative dimension"),
        pytest.param({"a": entry("F32", [True], 0, 4)}, 4, id="a dimension that is true"),
        pytest.param({"a": entry("F32", [1.0], 0, 4)}, 4, id="a dimension with a point"),
        pytest.param({"a": entry("F32", [1] * 65, 0, 4)}, 4, id="more dimensions than torch has"),
        pytest.param({"a": entry("F32", [0, 2**63], 0, 0)}, 0, id="a dimension beyond 64 bits"),
        pytest.param({"a": entry("F32", [1], 4, 0)}, 4, id="an end before its beginning"),
        pytest.param({"a": entry("F32", [1], 4, 8)}, 8, id="a gap at the beginning"),
        pytest.param(
            {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, 12, id="a gap between"
        ),
        pytest.param(
            {"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, 8, id="an overlap"
        ),
        pytest.param(
            {"a": entry("F32", [1], 0, 4) | {"more": [0] * 2_000_001}},
            4,
            id="more values than have room",
        ),
    ],
)
def test_an_impossible_header_is_malformed(header: Any, size: int) -> None:
    assert refused(header, size) is Reason.CHECKPOINT_MALFORMED


@pytest.mark.parametrize(
    "encode",
    [
        pytest.param(lambda text: text.encode("utf-16-le"), id="another encoding"),
        pytest.param(lambda text: text.encode("utf-8-sig"), id="a byte order mark"),
        pytest.param(lambda text: text.replace('"x"', "NaN").encode(), id="NaN"),
    ],
)
def test_json_that_only_python_accepts_is_malformed(encode: Callable[[str], bytes]) -> None:
    header = encode(json.dumps({"a": entry("F32", [1], 0, 4) | {"more": "x"}}))
    refusal = refusal_from(parse_header, header, file="f", size=8 + len(header) + 4)
    assert refusal.reason is Reason.CHECKPOINT_MALFORMED


@pytest.mark.parametrize("size", [3, 5], ids=["too short", "too long"])
def test_a_file_shorter_or_longer_than_its_header_says_is_truncated(size: int) -> None:
    assert refused({"a": entry("F32", [1], 0, 4)}, size) is Reason.CHECKPOINT_TRUNCATED


@pytest.mark.parametrize(
    ("prefix", "size", "reason"),
    [
        pytest.param(b"", 0, Reason.CHECKPOINT_TRUNCATED, id="an empty file"),
        pytest.param(b"\0" * 7, 7, Reason.CHECKPOINT_TRUNCATED, id="no whole length"),
        pytest.param(
            struct.pack("<Q", 100), 50, Reason.CHECKPOINT_TRUNCATED, id="ends within the header"
        ),
        pytest.param(
            struct.pack("<Q", HEADER_LIMIT + 1),
            1 << 40,
            Reason.CHECKPOINT_MALFORMED,
            id="a header too long",
        ),
        pytest.param(b"\x80\x04\x95abcdefg", 99, Reason.CHECKPOINT_MALFORMED, id="a pickle"),
        pytest.param(b"PK\x03\x04abcd", 99, Reason.CHECKPOINT_MALFORMED, id="an archive"),
        pytest.param(b"version https://", 130, Reason.CHECKPOINT_MALFORMED, id="an LFS pointer"),
    ],
)
def test_a_file_with_a_bad_beginning_is_refused(prefix: bytes, size: int, reason: Reason) -> None:
    assert refusal_from(header_length, prefix, file="f", size=size).reason is reason


@given(st.binary(max_size=200), st.integers(0, 500))
def test_any_header_is_parsed_or_refused(content: bytes, size: int) -> None:
    reason = None
    try:
        parse_header(content, file="f", size=size)
    except Refusal as refusal:
        reason = refusal.reason
    assert reason in (None, Reason.CHECKPOINT_MALFORMED, Reason.CHECKPOINT_TRUNCATED)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)
_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(DTYPES)) | _JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | _JSON,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2) | _JSON,
    }
)


@given(st.dictionaries(st.text(max_size=4), _ENTRY | _JSON, max_size=3), st.integers(0, 200))
def test_accepted_tensors_cover_the_file_exactly(header: dict[str, Any], size: int) -> None:
    try:
        specs = parsed(header, size)
    except Refusal:
        return
    start = 8 + len(json.dumps(header).encode())
    edges = [start, *(spec.end for spec in specs)]
    assert [spec.begin for spec in specs] == edges[:-1]
    assert edges[-1] == start + size
