"""A model's parameters inside the engine's process: what a load changed, and a checksum over all bits.

The comparison of before and after is bit for bit, of quantised values too. It needs memory only for the
sample; see `engine.effect`.

The checksum names weights that have no files. Workers with the same weights compute the same one. It
is not cryptographic: an attacker can construct two sets of weights with the same checksum.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fleet_worker.engine.effect import SAMPLE, shares_of_sample

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
# The engine computes these at run time, and every load resets them.
_COMPUTED = ("k_scale", "v_scale", "q_scale", "prob_scale")
_SEED = 17


@dataclass(frozen=True, slots=True)
class _Seen:
    """One parameter before a load.

    Fields:
        shape: its dtype, shape and strides.
        places: indices of the sampled elements. None for all.
        values: bits of the sampled elements.
        sum: sum over all bits.
    """

    shape: tuple[Any, ...]
    places: torch.Tensor | None
    values: torch.Tensor
    sum: torch.Tensor


class Memory:
    """A sample of a model's parameters before a load."""

    def __init__(self, model: Any, config: Any, *, sample: int = SAMPLE) -> None:
        """Take the sample.

        `sample`: the approximate number of elements to keep.
        """
        self._seen: dict[str, _Seen] = {}
        self._left_out: list[str] = []
        if config.parallel_config.enable_eplb:
            self._left_out.append("expert rebalancing moves experts to other slots at every load")
            return
        padded = _padded_experts(model)
        flats: list[tuple[str, tuple[Any, ...], torch.Tensor]] = []
        for name, parameter in _parameters(model):
            if name.startswith(padded):
                self._left_out.append(f"{name} has padded experts, whose padding is never written")
            elif why := _why_not(parameter):
                self._left_out.append(f"{name} {why}")
            else:
                flats.append((name, _shape(parameter), _flat(parameter)))
        counts = shares_of_sample([flat.numel() for _, _, flat in flats], sample=sample)
        for (name, shape, flat), count in zip(flats, counts, strict=True):
            size = flat.numel()
            places = None if count == size else _places(size, count, flat.device)
            values = flat.clone() if places is None else flat.index_select(0, places)
            self._seen[name] = _Seen(shape, places, values, _sum(flat))

    def compared(self, model: Any) -> dict[str, Any]:
        """Return the changes since the sample; see `engine.effect.combined`."""
        left_out = list(self._left_out)
        now = dict(_parameters(model))
        compared = covered = 0
        changed, same = 0.0, True
        for name, seen in self._seen.items():
            parameter = now.get(name)
            if parameter is None or _why_not(parameter) or _shape(parameter) != seen.shape:
                left_out.append(f"{name} has another type, shape or layout after the load")
                continue
            flat = _flat(parameter)
            values = flat if seen.places is None else flat.index_select(0, seen.places)
            differ = int((values != seen.values).sum())
            compared += values.numel()
            covered += flat.numel()
            changed += differ / values.numel() * flat.numel()
            same = same and differ == 0 and bool(_sum(flat) == seen.sum)
        return {
            "compared": compared,
            "covered": covered,
            "changed": changed,
            "same": same,
            "why_not": _message(left_out, of=len(self._left_out) + len(self._seen)),
        }


def not_compared(why: str) -> dict[str, Any]:
    """Return the answer of a process that could not compare."""
    return {"compared": 0, "covered": 0, "changed": 0.0, "same": True, "why_not": why[:500]}


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        if not name.endswith(_COMPUTED):
            yield name, parameter


def _padded_experts(model: Any) -> tuple[str, ...]:
    """Return the name prefixes of parameters that are larger than the checkpoint's tensors.

    Source: `FusedMoEConfig` of vLLM.
    """
    found = []
    for name, module in model.named_modules():
        config = getattr(module, "moe_config", None)
        pairs = (
            ("hidden_dim", "hidden_dim_unpadded"),
            ("intermediate_size_per_partition", "intermediate_size_per_partition_unpadded"),
        )
        sizes = [(getattr(config, a, None), getattr(config, b, None)) for a, b in pairs]
        if any(size != unpadded for size, unpadded in sizes if unpadded is not None):
            found.append(f"{name}.")
    return tuple(found)


def is_known(parameter: Any) -> bool:
    """Return whether a checksum can include all values of a parameter."""
    return not _why_unknown(parameter)


def _why_not(parameter: Any) -> str:
    """Return why the stored values of a parameter cannot be compared; empty if they can."""
    why = _why_unknown(parameter)
    if not why and _dense(parameter) is None:
        return "is stored with gaps, such as padding"
    return why


def _why_unknown(parameter: Any) -> str:
    if hasattr(parameter, "partitions") or hasattr(parameter, "__tensor_flatten__"):
        return "is stored as several tensors"
    if parameter.is_meta:
        return "has no values"
    if parameter.numel() == 0:
        return "is stored in a kernel's own format"
    if parameter.element_size() not in _BITS:
        return f"has elements of {parameter.element_size()} bytes"
    return ""


def _dense(parameter: Any) -> Any:
    """Return the parameter with its values in memory order, or None if there are gaps."""
    tensor = parameter.detach()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    ordered = tensor.permute(order)
    return ordered if ordered.is_contiguous() else None


def _flat(parameter: Any) -> torch.Tensor:
    """Return all elements as bits, without a copy."""
    return bits_of(_dense(parameter).view(-1))


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """Return contiguous values as bits, without a copy."""
    return values.view(_BITS[values.element_size()])


def _shape(parameter: Any) -> tuple[Any, ...]:
    return (parameter.dtype, tuple(parameter.shape), tuple(parameter.stride()))


@functools.lru_cache(maxsize=64)  # layers have the same sizes, and so have loads
def _places(size: int, count: int, device: torch.device) -> torch.Tensor:
    """Return a random index in each of `count` equal ranges, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.rand(count, generator=generator, dtype=torch.float64)
    places = (torch.arange(count, dtype=torch.float64) + drawn) * (size / count)
    return places.to(torch.int64).clamp_(max=size - 1).to(device)


def _sum(flat: torch.Tensor) -> torch.Tensor:
    """Return the sum over all bits, as integers that wrap, in one pass at memory speed."""
    raw = flat.view(torch.uint8)
    if raw.storage_offset() % _WORD:
        return raw.to(torch.int64).sum()
    rest = raw.numel() % _WORD
    total = raw[: raw.numel() - rest].view(torch.int64).sum()
    return total + raw[raw.numel() - rest :].to(torch.int64).sum() if rest else total


def _message(left_out: list[str], *, of: int) -> str:
    if not left_out:
        return ""
    if len(left_out) == 1 and of <= 1:
        return left_out[0][:500]
    return f"{len(left_out)} of {of} parameters could not be compared: {left_out[0]}"[:500]


# 32 MiB of 64-bit numbers at a time: little next to a model, and enough to keep a GPU busy.
_ELEMENTS_AT_ONCE = 1 << 22
# The multipliers of SplitMix64 (Steele, Lea and Flood, 2014), as signed numbers.
_PLACE = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def checksum_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the checksum of named tensors in hexadecimal digits.

    They are on any device, of any shape and any type of 1 to 8 bytes.
    """
    digest = hashlib.sha256()
    sums = [(name, _sum_of(tensor)) for name, tensor in sorted(parameters, key=lambda p: p[0])]
    for name, number in sums:
        digest.update(f"{name} {number.item()}\n".encode())
    return digest.hexdigest()


def _sum_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all elements, each mixed with its index.

    Integers, so that the order of the additions does not matter.
    """
    flat = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for begin in range(0, flat.numel(), _ELEMENTS_AT_ONCE):
        # A copy of 8-byte elements, too: the next lines write to it.
        mixed = flat[begin : begin + _ELEMENTS_AT_ONCE].to(torch.int64, copy=True)
        places = torch.arange(begin + 1, begin + 1 + mixed.numel(), device=flat.device)
        mixed += places.mul_(_PLACE)
        mixed.mul_(_FIRST).bitwise_xor_(mixed >> 27)
        mixed.mul_(_SECOND).bitwise_xor_(mixed >> 31)
        total += mixed.sum()
    return total
