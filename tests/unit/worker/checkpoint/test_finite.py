"""Whether a checkpoint holds infinities, and what its configuration computes."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support import damage
from tests.support.fake_modules import install
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint import blocks, finite, inspection, reading
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.config_code import ConfigCode
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def floats_of_sixteen_bits() -> Iterator[tuple[int, float, float]]:
    """Every pattern of 16 bits, as float16 and as bfloat16."""
    for bits in range(1 << 16):
        (half,) = struct.unpack("<e", struct.pack("<H", bits))
        (brain,) = struct.unpack("<f", struct.pack("<I", bits << 16))
        yield bits, half, brain


@pytest.fixture
def is_finite(tmp_path: Path) -> Iterator[Callable[..., bool]]:
    """Whether a file of one tensor of these bytes passes."""
    (tmp_path / "config.json").write_text("{}")
    with ExitStack() as stack:

        def passes(dtype: str, data: bytes, count: int, *, held: bool = False) -> bool:
            file = tmp_path / damage.WEIGHTS
            damage.write_tensors(file, {"w": (dtype, [count], data)})
            checkpoint = open_checkpoint(str(tmp_path), None)
            stack.callback(checkpoint.close)
            budget = 1 << 30 if held else 0
            try:
                in_memory = checkpoint.read_all(
                    budget=budget, check_cancelled=lambda: None, inspect=finite.inspect
                )
                assert in_memory is held
            except Refusal as refusal:
                if (
                    refusal.reason is not Reason.CHECKPOINT_NOT_FINITE
                    or "'w'" not in refusal.message
                ):
                    raise
                return False
            return True

        yield passes


def test_every_16_bit_number_is_classified_as_finite_or_not(is_finite: Callable[..., bool]) -> None:
    numbers: dict[str, list[int]] = {"F16": [], "BF16": []}
    others: dict[str, list[int]] = {"F16": [], "BF16": []}
    for bits, half, brain in floats_of_sixteen_bits():
        for dtype, value in (("F16", half), ("BF16", brain)):
            (numbers if math.isfinite(value) else others)[dtype].append(bits)
    for dtype in ("F16", "BF16"):
        whole = struct.pack(f"<{len(numbers[dtype])}H", *numbers[dtype])
        assert is_finite(dtype, whole, len(numbers[dtype]))
        # All of them would take seconds; both ends, both signs, and some in between.
        for bits in (*others[dtype][:2], *others[dtype][-2:], *others[dtype][::97]):
            assert not is_finite(dtype, struct.pack("<H", bits), 1), hex(bits)


@pytest.mark.parametrize(
    ("dtype", "letter", "largest"), [("F32", "f", 0x7F7F_FFFF), ("F64", "d", 0x7FEF_FFFF_FFFF_FFFF)]
)
def test_the_largest_finite_number_passes_and_the_next_one_fails(
    is_finite: Callable[..., bool], dtype: str, letter: str, largest: int
) -> None:
    word = {"f": "<I", "d": "<Q"}[letter]
    sign = 1 << (8 * struct.calcsize(word) - 1)
    for bits in (0, sign, largest, largest | sign):
        assert is_finite(dtype, struct.pack(word, bits), 1), hex(bits)
    for bits in (largest + 1, largest + 2, (largest + 1) | sign, sign * 2 - 1):
        assert not is_finite(dtype, struct.pack(word, bits), 1), hex(bits)


@pytest.mark.parametrize(
    ("dtype", "first_bad"), [("F8_E4M3", [0x7F, 0xFF]), ("F8_E5M2", [0x7C, 0x7D, 0x7F, 0xFC, 0xFF])]
)
def test_eight_bit_types_have_their_own_infinities(
    is_finite: Callable[..., bool], dtype: str, first_bad: list[int]
) -> None:
    assert is_finite(dtype, bytes([0x00, 0x7B, 0x80, 0xFB]), 4)
    for bits in first_bad:
        assert not is_finite(dtype, bytes([bits]), 1), hex(bits)


@pytest.mark.parametrize("dtype", ["I16", "U8", "I64", "BOOL", "F8_E8M0"])
def test_types_without_infinities_are_not_checked(
    is_finite: Callable[..., bool], dtype: str
) -> None:
    assert is_finite(dtype, b"\xff" * 8, 8 // {"I16": 2, "I64": 8}.get(dtype, 1))


@pytest.mark.parametrize("position", [0, 1, 6, 7, 8, 13, 14, 15])
@pytest.mark.parametrize("held", [False, True], ids=["on disk", "in memory"])
def test_an_infinity_is_found_at_any_position(
    is_finite: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, position: int, held: bool
) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 12)  # three blocks, or fewer
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 2)
    values = [damage.bfloat16(1.0)] * 16
    assert is_finite("BF16", b"".join(values), 16, held=held)
    values[position] = damage.bfloat16(float("inf"))

    assert not is_finite("BF16", b"".join(values), 16, held=held)


def test_an_empty_tensor_is_finite(is_finite: Callable[..., bool]) -> None:
    assert is_finite("F32", b"", 0)


def test_reading_stops_between_blocks_when_a_newer_version_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 16)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1)
    (tmp_path / "config.json").write_text("{}")
    damage.write_tensors(tmp_path / damage.WEIGHTS, {"w": ("F32", [800], bytes(3200))})
    checkpoint = open_checkpoint(str(tmp_path), None)
    asked: list[int] = []

    def check_cancelled() -> None:
        asked.append(1)
        if len(asked) == 9:
            raise Refusal(Reason.SUPERSEDED, "a newer one")

    refusal = refusal_from(
        checkpoint.read_all, budget=0, check_cancelled=check_cancelled, inspect=finite.inspect
    )
    checkpoint.close()

    assert refusal.reason is Reason.SUPERSEDED
    assert len(asked) == 9


@pytest.mark.parametrize(
    ("dtype", "served", "largest", "too_large"),
    [
        ("F32", "F16", 65504.0, 65536.0),
        ("BF16", "F16", 65280.0, 65536.0),
        ("F32", "BF16", 3.3895313892515355e38, 3.4e38),
        ("F64", "BF16", 3.3895313892515355e38, 3.4e38),
        ("F64", "F32", 3.4028234663852886e38, 3.4028236e38),
        ("F16", "BF16", 65504.0, None),
        ("F32", "F64", 3.4028234663852886e38, None),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_a_cast_makes_infinite_is_refused(
    dtype: str, served: str, largest: float, too_large: float | None, sign: int
) -> None:
    def inspected(number: float) -> bool:
        content = memoryview(packed(dtype, sign * number) + packed(dtype, 1.0))
        spec = TensorSpec("w", dtype, (2,), 0, len(content))
        assert finite.inspect(spec, content) is True, "it is a number"
        return bool(finite.inspect(spec, content, casts={"w": served}))

    assert inspected(largest)
    if too_large is not None:
        refusal = refusal_from(inspected, too_large)
        assert refusal.reason is Reason.CHECKPOINT_NOT_FINITE
        assert f"{dtype} that are infinite in {served}" in refusal.message
        assert f"start the fleet on a model in {dtype}" in refusal.message
        assert f"Save {served}" not in refusal.message  # it has no such numbers


def packed(dtype: str, number: float) -> bytes:
    if dtype == "BF16":
        return struct.pack("<f", number)[2:]
    return struct.pack({"F16": "<e", "F32": "<f", "F64": "<d"}[dtype], number)


@pytest.mark.parametrize(
    ("dtype", "zero", "other"),
    [
        ("BF16", b"\x00\x00\x00\x80", b"\x00\x00\x01\x00"),
        ("F16", b"\x00\x80\x00\x00", b"\x01\x80\x00\x00"),
        ("F32", b"\x00\x00\x00\x80", b"\x00\x00\x80\x80"),
        ("F8_E4M3", b"\x00\x80\x00\x00", b"\x00\x80\x00\x01"),
        ("I32", bytes(4), b"\x00\x00\x00\x80"),
        ("U8", bytes(4), b"\x00\x00\x01\x00"),
    ],
)
def test_a_block_of_positive_and_negative_zeros_is_zero(
    dtype: str, zero: bytes, other: bytes
) -> None:
    spec = TensorSpec("w", dtype, (1,), 0, 4)

    assert finite.inspect(spec, memoryview(zero)) is False
    assert finite.inspect(spec, memoryview(other)) is True


class FakeConfig:
    """The tensors that transformers expects for a configuration."""

    sub_configs: ClassVar[dict[str, Any]] = {"text_config": None}

    @staticmethod
    def from_dict(config: dict[str, Any]) -> Any:
        if config.get("hidden_size") == "broken":
            raise KeyError("hidden_size")
        filled = {"rope_theta": 10_000.0, "id2label": {"0": "one"}, **config}
        filled.pop("architectures", None)
        made = FakeConfig()
        made.to_dict = lambda: filled
        return made


def test_configurations_are_compared_with_their_defaults_filled_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    install(monkeypatch, {"transformers": {"CONFIG_MAPPING": {"tiny": FakeConfig}}})
    short = {"model_type": "tiny", "architectures": ["Tiny"]}

    assert inspection.normalised_config(short) == {**short, "rope_theta": 10_000.0}
    for unknown in ({"model_type": "other"}, {}, {"model_type": ["tiny"]}, {"model_type": None}):
        assert inspection.normalised_config(unknown) == unknown
    refusal = refusal_from(inspection.normalised_config, {**short, "hidden_size": "broken"})
    assert refusal.reason is Reason.CHECKPOINT_MALFORMED


def test_what_no_code_reads_is_left_out_of_a_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[tuple[Any, ...]] = []

    def code_of(*given: Any) -> ConfigCode:
        looked.append(given)
        return ConfigCode(frozenset(given[-1]), frozenset({"model_type", "text_config"}))

    install(monkeypatch, {"transformers": {"CONFIG_MAPPING": {"tiny": FakeConfig}}})
    monkeypatch.setattr(inspection, "code_of", code_of)
    config = {"model_type": "tiny", "text_config": {"other": 1}, "mine": 2, "auto_map": "a--b"}
    checkpoint = Checkpoint(str(tmp_path), config, (), {}, {})
    code = inspection.ModelInspector().code_of(checkpoint)
    found = inspection.ModelInspector().normalised_config(config, code)

    assert {key: found.get(key) for key in config} == {
        "model_type": "tiny",
        "text_config": {},
        "mine": None,
        "auto_map": None,
    }
    assert looked == [(config, str(tmp_path), [Path(__file__)], {"text_config"})]
