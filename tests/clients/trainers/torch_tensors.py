"""Tensors of torch as the client writes them, compared with what safetensors writes. Prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlfleet.deltas.sources import FromDirectory, FromStateDict
from rlfleet.deltas.writing import write_full

folder = Path(sys.argv[1])
bits = torch.arange(64, dtype=torch.uint8)
types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
types += [torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
types += [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
tensors = {
    str(dtype): (bits % 2 if dtype is torch.bool else bits.clone()).view(dtype).reshape(2, -1)
    for dtype in types
}
tensors["transposed"] = torch.arange(12, dtype=torch.float32).reshape(3, 4).T
tensors["scalar"] = torch.tensor(1.5, dtype=torch.bfloat16)
tensors["empty"] = torch.zeros(0, 3)
tensors["trained"] = torch.nn.Parameter(torch.ones(3))
(folder / "ours").mkdir()
(folder / "theirs").mkdir()
(folder / "theirs/config.json").write_text("{}")
save_file(
    {n: t.detach().contiguous() for n, t in tensors.items()}, folder / "theirs/model.safetensors"
)
write_full(FromStateDict(tensors, folder / "theirs"), folder / "ours", None, lambda _: None)
with FromDirectory(folder / "ours") as ours, FromDirectory(folder / "theirs") as theirs:
    (mine,), (other,) = ours.layout.files, theirs.layout.files
    expected = {e.name: (e.dtype, e.shape, theirs.read(other, e).tobytes()) for e in other.tensors}
    found = {e.name: (e.dtype, e.shape, ours.read(mine, e).tobytes()) for e in mine.tensors}
differing = [name for name in tensors if found[name] != expected[name]]
print(json.dumps({"tensors": len(found), "differing": differing}))  # noqa: T201 - the test reads it
