"""The processor and its instructions, from the text that Linux gives on each architecture."""

from __future__ import annotations

import pytest

import processor
from processor import Processor

XEON = """\
processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx2 avx512f amx_tile amx_bf16 avx512_bf16

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd sve i8mm bf16\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("cpuinfo", "instructions"),
    [
        (XEON, ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")),
        (GRAVITON, ("asimd", "bf16", "i8mm", "sve")),
        ("", ()),
    ],
    ids=["x86", "arm", "unknown"],
)
def test_the_instructions_are_those_by_which_vllm_chooses(
    cpuinfo: str, instructions: tuple[str, ...]
) -> None:
    found = processor.processor(cpuinfo)

    assert found.instructions == instructions
    assert found.name


def test_the_name_has_the_model_of_the_first_processor() -> None:
    found = processor.processor(XEON)

    assert found.name == "Intel(R) Xeon(R) Platinum 8481C (family 6, model 143)"


def test_a_machine_without_the_file_has_a_processor_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", processor.Path("/nonexistent"))

    assert processor.here().instructions == ()
    assert str(Processor("any", ())) == "any: no instructions known"
