"""The processor of this machine, and those of its instructions by which vLLM chooses kernels.

    python3 tools/processor.py    print both in one line

It needs nothing but Python, since `.ci/run` prints the line before anything else.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

INSTRUCTIONS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "bf16", "i8mm", "sve", "sve2"),
)
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor. `instructions` are some of `INSTRUCTIONS`, in that order."""

    name: str
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {' '.join(self.instructions) or 'no instructions known'}"


def processor(cpuinfo: str) -> Processor:
    """Read the text of `/proc/cpuinfo`, which differs between architectures; it may be empty."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    flags = f"{fields.get('flags', '')} {fields.get('features', '')}".split()
    name = fields.get("model name") or platform.processor() or platform.machine() or "unknown"
    # Virtual machines may hide the name of the model.
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields.get('model', 'unknown')})"
    return Processor(name, tuple(each for each in INSTRUCTIONS if each in flags))


def here() -> Processor:
    """Return the processor of this machine."""
    try:
        return processor(_CPUINFO.read_text(errors="replace"))
    except OSError:
        return processor("")


if __name__ == "__main__":
    print(f"processor: {here()}")
