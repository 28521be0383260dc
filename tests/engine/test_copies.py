"""Copies of weights to a device, with the real torch. The device is a fake: some tensors of this machine."""

from __future__ import annotations

from typing import Any

from tests.engine.scripts import output_of

_DEVICE = """
import json, torch
from fleet_worker.engine.copies import Buffers, Copies

class FakeEvent:
    made, waits = 0, []
    def __init__(self):
        FakeEvent.made += 1
        self.number, self.recorded = FakeEvent.made, 0
    def record(self):
        self.recorded += 1
    def synchronize(self):
        FakeEvent.waits.append((self.number, self.recorded))

on_device = {}
def device(tensor):
    # The tensor is kept: its address must not become that of a tensor of the host.
    on_device[tensor.untyped_storage().data_ptr()] = tensor
    return tensor
def is_on_device(tensor):
    return tensor.untyped_storage().data_ptr() in on_device

asynchronous = []
real = torch.Tensor.copy_
def noted(self, source, non_blocking=False):
    asynchronous.append(bool(non_blocking))
    return real(self, source, non_blocking)
torch.Tensor.copy_ = noted

def copies(buffers=None, registered=()):
    asynchronous.clear()
    return Copies(registered, buffers, is_on_device=is_on_device)
def buffers(size=4096, count=2):
    FakeEvent.made, FakeEvent.waits = 0, []
    return Buffers(torch.zeros(size * count, dtype=torch.uint8).split(size), FakeEvent)
found = {}
"""

_SCRIPT = (
    _DEVICE
    + """
from vllm.model_executor.model_loader.reload.meta import CopyCounter

def same(shape, dtype=torch.bfloat16, part=lambda tensor: tensor, via=None):
    source = part((torch.randn(shape) * 100).to(dtype))
    target = device(torch.zeros(source.shape, dtype=dtype))
    with copies(via or buffers()):
        target.copy_(source)
    return bool(torch.equal(target, source))

found["equal"] = {
    "one value": same(()),
    "empty": same((0, 7)),
    "a vector": same((1000,)),
    "larger than all buffers": same((300, 70)),
    "a row is larger than a buffer": same((3, 5000), part=lambda t: t[:, 1:]),
    "a part of each row": same((64, 96), part=lambda t: t.narrow(1, 32, 32)),
    "transposed": same((90, 50), part=lambda t: t.t()),
    "three dimensions": same((4, 33, 65), part=lambda t: t[:, :, 1:]),
    "bytes of numbers of eight bits": same((4100,), torch.float8_e4m3fn),
    "long": same((999,), torch.int64),
}
big = torch.randn(3 << 20)
target = device(torch.zeros(3 << 20))
with copies(buffers(8 << 20)):
    target.copy_(big)
found["equal"]["filled by several threads"] = bool(torch.equal(target, big))

# A target with gaps, as of a fused layer.
whole = device(torch.zeros(60, 64))
source = torch.randn(60, 32)
with copies(buffers()):
    whole[:, 32:].copy_(source)
found["equal"]["a target with gaps"] = bool(
    torch.equal(whole[:, 32:], source) and not whole[:, :32].any()
)

# What goes through buffers may change right after the copy, and a buffer is waited for before it is filled again.
target, source = device(torch.zeros(8, 1024, dtype=torch.uint8)), torch.ones(8, 1024, dtype=torch.uint8)
with copies(buffers(2048)):
    for row, given in zip(target, source):
        row.copy_(given)
        given.zero_()
found["all ones"] = bool(target.eq(1).all())
found["waits"] = FakeEvent.waits

# vLLM counts the copied elements on the outside.
with copies(buffers()), CopyCounter() as counter:
    device(torch.zeros(5000)).copy_(torch.randn(5000))
found["counted"] = counter.copied_numel

# Copies of torch that change the type, stay on the host, or have no values are left alone.
half, meta = device(torch.zeros(8, dtype=torch.float16)), torch.zeros(8, device="meta")
with copies(buffers()):
    half.copy_(torch.arange(8.0))
    torch.zeros(8).copy_(torch.ones(8))
    meta.copy_(torch.ones(8))
found["cast"] = half.tolist()
found["unused"] = not FakeEvent.waits

# A failure inside leaves nothing behind.
try:
    with copies(buffers()):
        raise KeyError
except KeyError:
    pass
from torch.utils._python_dispatch import _get_current_dispatch_mode
found["left"] = _get_current_dispatch_mode() is None
print("result " + json.dumps(found))
"""
)

_REGISTERED = (
    _DEVICE
    + """
class NoBuffers:
    taken = []
    def copy(self, target, source):
        self.taken.append(list(source.shape))
        target.copy_(source)

seen = []
class Noting(Copies):
    def _is_registered(self, source):
        known = super()._is_registered(source)
        seen.append(known)
        return known

memory = torch.arange(4096, dtype=torch.float32)
begin = memory.data_ptr()
inside = (begin + 1024, begin + 8192)
with Noting([inside], NoBuffers(), is_on_device=is_on_device):
    for part in (memory[256:2048], memory[255:300], memory[2000:2049], memory[512:1536].view(32, 32)[:, :16]):
        target = device(torch.zeros(part.shape))
        target.copy_(part)
        assert torch.equal(target, part)
print("result " + json.dumps({"registered": seen, "buffered": NoBuffers.taken}))
"""
)

_CUDA = """
import json, mmap, os, sys, time, torch
from types import SimpleNamespace
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.engine import cuda_runtime
from fleet_worker.engine.held import Held

calls, codes = [], []
class FakeCudart:
    def cudaHostRegister(self, address, size, flags):
        calls.append(["register", size, flags])
        return codes.pop(0) if codes else 0
    def cudaHostUnregister(self, address):
        calls.append(["unregister"])
        return 0
torch.cuda.cudart = FakeCudart
torch.cuda.set_device = lambda device: calls.append(["device", str(device)])
torch.cuda.synchronize = lambda device: calls.append(["synchronize", str(device)])
cuda_runtime._pinned_buffers = lambda: None

def file(letter):
    made = MemoryFile(letter, 3 * mmap.PAGESIZE)
    made.write(memoryview(bytes(made.size)), 0)
    made.seal()
    return f"/proc/self/fd/{made.descriptor}"
def done(held, *links):
    held.want(links)
    while not (answer := held.state())["done"]:
        time.sleep(0.005)
    return answer
one, other = file("a"), file("b")

cpu = cuda_runtime.runtime_here()
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
held = Held(cuda_runtime.runtime_here())
done(held, one)
(begin, end), = held.registered()
found = {"registered": end - begin, "size": 3 * mmap.PAGESIZE, "good": list(calls)}
done(held)
found["let go"] = calls[-1]

codes.append(2)
out_of_memory = Held(cuda_runtime.runtime_here())
found["once"] = [done(out_of_memory, one)["registered"], done(out_of_memory, one, other)["registered"]]

calls.clear()
codes.append(801)
refusing = cuda_runtime.runtime_here()
held = Held(refusing)
found["refused"] = [done(held, one)["why_not"], done(held, one, other)["why_not"]]
found["tries"] = [call[0] for call in calls].count("register")

calls.clear()
try:
    with refusing.copying(()):
        raise KeyError
except KeyError:
    found["after a failure"] = list(calls)
found["cpu"] = cpu is None
print("result " + json.dumps(found))
"""


def test_every_shape_arrives_as_it_is_through_buffers_of_any_size() -> None:
    found: dict[str, Any] = output_of(_SCRIPT)

    assert [name for name, equal in found["equal"].items() if not equal] == []
    assert found["all ones"]
    # Two rows fit into a buffer of 2 KiB: each change waits for the buffer that comes next.
    assert found["waits"] == [[2, 0], [1, 1], [2, 1]]
    assert found["counted"] == 5000
    assert found["cast"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found["unused"]
    assert found["left"]


def test_only_contiguous_bytes_inside_of_a_registered_range_are_read_where_they_are() -> None:
    found: dict[str, Any] = output_of(_REGISTERED)

    assert found["registered"] == [True, False, False, False]
    assert found["buffered"] == [[45], [49], [32, 16]]


def test_cuda_registers_for_reading_only_and_a_refusal_is_not_tried_again() -> None:
    found: dict[str, Any] = output_of(_CUDA)

    portable_and_read_only = 1 | 8
    assert ["register", found["size"], portable_and_read_only] in found["good"]
    assert (found["registered"], found["let go"]) == (found["size"], ["unregister"])
    assert found["tries"] == 1
    assert ["801" in why for why in found["refused"]] == [True, True]
    assert found["once"] == [0, found["size"]], "the next file may be registered"
    assert found["after a failure"] == [["synchronize", "cuda:0"]]
    assert found["cpu"]
