"""Comparing a model's parameters before and after a load, inside the engine's process.

Stored values are compared, bit for bit: of the type that is served, quantised ones included. The
memory it takes is that of the sample; see `core.effect`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fleet_worker.core.effect import SAMPLE, shares_of_sample

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
# Found out by the engine at run time, and begun again by every load.
_FOUND_OUT = ("k_scale", "v_scale", "q_scale", "prob_scale")
_SEED = 17


@dataclass(frozen=True, slots=True)
class _Seen:
    """One parameter before a load.

    Fields:
        shape: its dtype, shape and strides.
        places: which elements were taken; None for all of them.
        values: their bits.
        sum: over all bits.
    """

    shape: tuple[Any, ...]
    places: torch.Tensor | None
    values: torch.Tensor
    sum: torch.Tensor


class Memory:
    """What a model's parameters were before a load."""

    def __init__(self, model: Any, config: Any, *, sample: int = SAMPLE) -> None:
        """Look at a model.

        Args:
            model: Of the engine.
            config: vLLM's configuration.
            sample: Elements to keep, about.
        """
        self._seen: dict[str, _Seen] = {}
        self._left_out: list[str] = []
        if config.parallel_config.enable_eplb:
            self._left_out.append("experts are rebalanced: their slots hold others at every load")
            return
        padded = _padded_experts(model)
        flats: list[tuple[str, tuple[Any, ...], torch.Tensor]] = []
        for name, parameter in _parameters(model):
            if name.startswith(padded):
                self._left_out.append(f"{name} holds padded experts: its padding is never written")
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
        """What has changed since; see `core.effect.combined`."""
        left_out = list(self._left_out)
        now = dict(_parameters(model))
        looked_at = covered = 0
        changed, same = 0.0, True
        for name, seen in self._seen.items():
            parameter = now.get(name)
            if parameter is None or _why_not(parameter) or _shape(parameter) != seen.shape:
                left_out.append(f"{name} has another form after the load")
                continue
            flat = _flat(parameter)
            values = flat if seen.places is None else flat.index_select(0, seen.places)
            differ = int((values != seen.values).sum())
            looked_at += values.numel()
            covered += flat.numel()
            changed += differ / values.numel() * flat.numel()
            same = same and differ == 0 and bool(_sum(flat) == seen.sum)
        return {
            "compared": looked_at,
            "covered": covered,
            "changed": changed,
            "same": same,
            "why_not": _in_words(left_out, of=len(self._left_out) + len(self._seen)),
        }


def not_compared(why: str) -> dict[str, Any]:
    """The answer of a process that could not look."""
    return {"compared": 0, "covered": 0, "changed": 0.0, "same": True, "why_not": why[:500]}


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        if not name.endswith(_FOUND_OUT):
            yield name, parameter


def _padded_experts(model: Any) -> tuple[str, ...]:
    """Beginnings of the names of parameters that are larger than what a checkpoint writes.

    Source: `FusedMoEConfig`, vLLM 0.32.
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


def _why_not(parameter: Any) -> str:
    """Why the stored values of a parameter cannot be looked at; empty if they can."""
    if hasattr(parameter, "partitions") or hasattr(parameter, "__tensor_flatten__"):
        return "is kept as several tensors"
    if parameter.is_meta:
        return "is not there"
    if parameter.numel() == 0:
        return "is kept in a format of its kernel's own"
    if parameter.element_size() not in _BITS:
        return f"has elements of {parameter.element_size()} bytes"
    if _dense(parameter) is None:
        return "is laid out with gaps, as padded ones are"
    return ""


def _dense(parameter: Any) -> Any:
    """The same values in the order in which they lie in memory, if no gap is between them."""
    tensor = parameter.detach()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    ordered = tensor.permute(order)
    return ordered if ordered.is_contiguous() else None


def _flat(parameter: Any) -> torch.Tensor:
    """All elements as bits, without a copy."""
    return _dense(parameter).view(-1).view(_BITS[parameter.element_size()])


def _shape(parameter: Any) -> tuple[Any, ...]:
    return (parameter.dtype, tuple(parameter.shape), tuple(parameter.stride()))


@functools.lru_cache(maxsize=64)  # the layers of a model are alike, and a load is like the next
def _places(size: int, count: int, device: torch.device) -> torch.Tensor:
    """One place in each of `count` equal stretches, where in it is drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.rand(count, generator=generator, dtype=torch.float64)
    places = (torch.arange(count, dtype=torch.float64) + drawn) * (size / count)
    return places.to(torch.int64).clamp_(max=size - 1).to(device)


def _sum(flat: torch.Tensor) -> torch.Tensor:
    """Over all bits, as whole numbers that wrap: one pass at the speed of the memory."""
    raw = flat.view(torch.uint8)
    if raw.storage_offset() % _WORD:
        return raw.to(torch.int64).sum()
    rest = raw.numel() % _WORD
    total = raw[: raw.numel() - rest].view(torch.int64).sum()
    return total + raw[raw.numel() - rest :].to(torch.int64).sum() if rest else total


def _in_words(left_out: list[str], *, of: int) -> str:
    if not left_out:
        return ""
    if len(left_out) == 1 and of <= 1:
        return left_out[0][:500]
    return f"{len(left_out)} of {of} parameters are not compared: {left_out[0]}"[:500]
