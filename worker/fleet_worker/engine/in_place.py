"""A load in place: only the elements that differ from the version in the engine are written into the model.

vLLM's own loader of the model says where each element goes. It runs once on the new tensors while nothing is
written: `Placing` notes each copy that it would make, from a part of a tensor into a part of a parameter. Anything
else ends the attempt, before the model has changed. Then the changed elements are written, each where the
loader would have put it, and compared.

vLLM has the same idea in `load_checkpoint_weight_patches`. It marks unchanged elements with NaN. So it makes a whole
tensor of each changed one, reads and writes each parameter as a whole, and knows no NaN and no integers. When it
finds a loader that it does not support, it has changed a part of the model.

Source: `model_loader.checkpoint_weight_patch`, `model_loader.reload.layerwise` and
`layers.utils.dispatch_cpu_unquantized_gemm` of vLLM.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fleet_worker.engine.changes import (
    LEAST_OF_A_PART,
    Changed,
    NotInPlaceError,
    PartlyWrittenError,
    sample_of,
    share_of_sample,
)
from fleet_worker.engine.parameters import bits_of
from fleet_worker.engine.vllm_names import ATTENTION, EMBEDDING, LINEAR

_AT_ONCE = 1 << 16
"""Elements to write at a time on the host: their indices stay in the processor's cache."""
_SEED = 82
ARCHITECTURES = frozenset(
    f"{name}ForCausalLM" for name in ("Gemma3", "Llama", "Mistral", "Qwen2", "Qwen3")
)
"""Of which loads in place were compared with full ones, bit for bit (`tests/engine/test_in_place.py`)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A copy that a loader would make.

    Fields:
        name: of the tensor.
        target: a part of a parameter.
        source: a part of the tensor, over the bytes of the version.
        offset: its first element in the tensor.
    """

    name: str
    target: torch.Tensor
    source: torch.Tensor
    offset: int


class Placing(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be checked
    """While it is entered, copies into a model are noted and not made, and nothing else may write to it."""

    def __init__(self, model: Any, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Note nothing yet.

        Args:
            model: The engine's model.
            tensors: The tensors that its loader gets, each contiguous.
        """
        super().__init__()
        held = [*model.parameters(), *model.buffers()]
        self._storages = {_storage(each) for each in held if each.numel()}
        self._tensors = sorted(
            ((each.data_ptr(), name, each) for name, each in tensors if each.numel()),
            key=lambda known: known[0],
        )
        self._begins = [begin for begin, *_ in self._tensors]
        self.placed: list[Placed] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do one operation of torch, or note it."""
        del types
        given = kwargs or {}
        is_read = func is torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - torch's name
        if is_read and self._known(args[0]):
            raise NotInPlaceError("the model's loader computes with the tensors that it gets")
        if not any(_storage(each) in self._storages for each in _written(func, args, given)):
            return func(*args, **given)
        if func is torch.ops.aten.copy_.default:
            self._note(*args[:2])
        elif not _pads(func, args):
            raise NotInPlaceError(f"the model's loader computes what it writes ({func})")
        return args[0]

    def _known(self, source: torch.Tensor) -> tuple[str, int] | None:
        """Return the tensor of which some elements are a part, and the first of them; None for others."""
        at = bisect_right(self._begins, source.data_ptr()) - 1
        begin, name, tensor = self._tensors[at] if at >= 0 else (0, "", source)
        offset = (source.data_ptr() - begin) // source.element_size()
        is_part = source.dtype == tensor.dtype and offset < tensor.numel()
        return (name, offset) if name and is_part else None

    def _note(self, target: torch.Tensor, source: torch.Tensor) -> None:
        known = self._known(source)
        if known is None or 0 in source.stride():
            raise NotInPlaceError("the model's loader computes with the tensors that it gets")
        name, offset = known
        if target.shape != source.shape or target.dtype != source.dtype:
            raise NotInPlaceError(f"the model keeps {name} with another type or shape")
        self.placed.append(Placed(name, target, source, offset))


def unfit_for_changes(model: Any, config: Any) -> str | None:
    """Return why no version can be loaded into a model in place, or None.

    Its parameters must be all that is made of the weights: no copy in the format of a kernel, no product.
    """
    return next(_problems(model, config), None)


def _problems(model: Any, config: Any) -> Iterator[str]:
    if type(model).__name__ not in ARCHITECTURES:
        yield f"loads in place are not tested with {type(model).__name__}"
    if config.model_config.quantization is not None:
        yield "the model is quantised"
    plain = (
        importlib.import_module(LINEAR).UnquantizedLinearMethod,
        importlib.import_module(EMBEDDING).UnquantizedEmbeddingMethod,
    )
    attention = importlib.import_module(ATTENTION).Attention
    for name, layer in model.named_modules():
        method = getattr(layer, "quant_method", None)
        processes = hasattr(layer, "process_weights_after_loading")
        if getattr(layer, "cpu_linear", None) not in (None, torch.nn.functional.linear):
            yield f"vLLM's kernel for CPUs keeps a packed copy of the weight of {name}"
        elif method is not None and type(method) not in plain:
            yield f"{name} keeps weights in the format of its kernel ({type(method).__name__})"
        elif method is None and processes and type(layer) is not attention:
            yield f"{name} computes with its weights when they are loaded"


def change(
    model: Any,
    now: Sequence[tuple[str, torch.Tensor]],
    changes: Mapping[str, Changed],
    *,
    about_to_write: Callable[[], None],
) -> None:
    """Write what differs between two versions into a model that has the first of them.

    Args:
        model: The engine's model (`unfit_for_changes`).
        now: Name of each changed tensor, and the tensor of the version, contiguous.
        changes: Name → changed elements of the tensor.
        about_to_write: Called before the first write.

    Errors:
        NotInPlaceError: The model has not changed.
        PartlyWrittenError: Only a whole load makes it usable.
    """
    placed = placed_in(model, now)
    planned = writings(placed, changes)
    check_base(planned)
    about_to_write()
    write(planned, placed)


def placed_in(model: Any, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[Placed]:
    """Return where the loader of a model puts tensors. The model does not change.

    Errors:
        NotInPlaceError: It does something else than copy them.
    """
    before = _addresses(model)
    placing = Placing(model, tensors)
    try:
        with placing:
            model.load_weights(iter(tensors))
    except NotInPlaceError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:300]
        raise NotInPlaceError(
            f"the model's loader does not take a part of a version ({why})"
        ) from error
    if _addresses(model) != before:
        raise NotInPlaceError("the model's loader gives parameters other memory")
    return placing.placed


@dataclass(frozen=True, slots=True)
class Writing:
    """The changed elements of one parameter's part, with their bits on the host.

    Fields:
        at: their indices in the part, in its order.
        values: of the version.
        few: indices of a sample of them. A part of a tensor may have few of its tensor's sample, or none.
        before: the bits of the sample in the version before.
    """

    placed: Placed
    at: np.ndarray
    values: np.ndarray
    few: np.ndarray
    before: np.ndarray

    def write(self) -> None:
        """Write them."""
        _put(self.placed.target, self.at, self.values)

    def has_base(self, chosen: np.random.Generator) -> bool:
        """Whether samples of the changed elements, and of the others, are those of the version before. The others are
        the same in both versions.
        """
        source, target = self.placed.source, self.placed.target
        drawn = chosen.integers(0, source.numel(), LEAST_OF_A_PART)
        at = self.at if source.is_contiguous() else np.sort(self.at)
        # By bisection, in their own type: the pause has no time to look at all changes, nor to copy them.
        next_changed = at.take(np.searchsorted(at, drawn.astype(at.dtype)), mode="clip")
        others = drawn[next_changed != drawn]
        of_both = bits_of(_taken(source, torch.from_numpy(others)))
        known = torch.from_numpy(self.before)
        return _has(target, others, of_both) and _has(target, self.few, known)

    def is_written(self) -> bool:
        """Whether a sample of the changed elements is in the model."""
        some = sample_of(len(self.at), max(LEAST_OF_A_PART, len(self.few)))
        return _has(self.placed.target, self.at[some], torch.from_numpy(self.values[some]))


def writings(placed: Iterable[Placed], changes: Mapping[str, Changed]) -> list[Writing]:
    """Return what to write.

    `placed`: where the parts of tensors go. `changes`: name of a tensor → its changed elements.
    """
    found = []
    for each in placed:
        changed = changes[each.name]
        at, which = _within(each, changed.positions)
        if len(at):
            few, of_few = _within(each, changed.positions[changed.sampled])
            found.append(Writing(each, at, changed.values[which], few, changed.before[of_few]))
    return found


def check_base(writings: Sequence[Writing]) -> None:
    """Check at samples that a model has the version before.

    Errors:
        NotInPlaceError: It has not.
    """
    chosen = np.random.default_rng(_SEED)
    for each in writings:
        if not each.has_base(chosen):
            name = each.placed.name
            raise NotInPlaceError(f"the engine has other values of {name} than its version")


def write(writings: Sequence[Writing], placed: Sequence[Placed]) -> None:
    """Write changed elements. Then compare samples of them, and of all in their tensors, with the version's bytes.

    Errors:
        PartlyWrittenError: The model is not that of the version.
    """
    try:
        for each in writings:
            each.write()
        _check_written(writings)
        check(placed)
    except PartlyWrittenError:
        raise
    except Exception as error:
        raise PartlyWrittenError(f"{type(error).__name__}: {error}"[:300]) from error


def _check_written(writings: Sequence[Writing]) -> None:
    for each in writings:
        if not each.is_written():
            raise PartlyWrittenError(f"the model lacks changed elements of {each.placed.name}")


def check(placed: Sequence[Placed], *, whole: bool = False) -> None:
    """Compare a model with what a whole load gives it.

    `whole`: compare all elements instead of a sample.

    Errors:
        PartlyWrittenError: They differ.
    """
    chosen, few = np.random.default_rng(_SEED), share_of_sample(len(placed))
    for each in placed:
        size = each.source.numel()
        some = np.arange(size) if whole else chosen.integers(0, size, few)
        of_version = bits_of(_taken(each.source, torch.from_numpy(some)))
        if not _has(each.target, some, of_version):
            raise PartlyWrittenError(f"the model has other values of {each.name} than the version")


def _has(target: torch.Tensor, indices: np.ndarray, bits: torch.Tensor) -> bool:
    """Whether elements of a part have these bits, which are on the host."""
    found = bits_of(_taken(target, _indices(indices, target.device)))
    return bool(torch.equal(found, bits.to(target.device)))


def _indices(at: np.ndarray, device: torch.device) -> torch.Tensor:
    # In this order the device makes 8 bytes of each 4, and not the host before it sends them.
    return torch.from_numpy(at).to(device).to(torch.int64)


def _within(placed: Placed, positions: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return which of a tensor's elements are in a part.

    Returns: their indices in the part's own order, and what selects them from the positions.
    """
    source, offset = placed.source, placed.offset
    if source.is_contiguous():
        begin, end = np.searchsorted(positions, [offset, offset + source.numel()])
        which = slice(int(begin), int(end))
        return positions[which] - offset, which
    rest = positions.astype(np.int64) - offset
    kept, index = rest >= 0, np.zeros_like(rest)
    places = np.cumprod([1, *source.shape[:0:-1]])[
        ::-1
    ]  # of each dimension in the part's own order
    order = sorted(range(source.dim()), key=source.stride, reverse=True)
    for dimension in order:
        size, stride = source.shape[dimension], source.stride(dimension)
        if size == 1:
            continue
        number, rest = np.divmod(rest, stride)
        kept &= number < size
        index += number * places[dimension]
    kept &= rest == 0
    return index[kept].astype(positions.dtype), kept


def _taken(tensor: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor.view(-1)[at]
    return tensor[torch.unravel_index(at, tensor.shape)]


def _put(tensor: torch.Tensor, at: np.ndarray, bits: np.ndarray) -> None:
    """Write bits, which are on the host, to elements of a part."""
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        flat = bits_of(tensor.view(-1)).numpy()  # it takes half of torch's time
        for begin in range(0, len(at), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            flat[at[part].astype(np.intp)] = bits[part]
        return
    where, values = (
        _indices(at, tensor.device),
        torch.from_numpy(bits).view(tensor.dtype).to(tensor.device),
    )
    if tensor.is_contiguous():
        tensor.view(-1)[where] = values
    else:
        tensor[torch.unravel_index(where, tensor.shape)] = values


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation writes to."""
    for number, each in enumerate(func._schema.arguments):  # noqa: SLF001 - there is no public way
        if each.alias_info is None or not each.alias_info.is_write:
            continue
        given = (
            kwargs.get(each.name) if each.name in kwargs or number >= len(args) else args[number]
        )
        for one in given if isinstance(given, list | tuple) else [given]:
            if isinstance(one, torch.Tensor) and one.numel():
                yield one


def _pads(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes zeros. They are padding, which every version has."""
    aten = torch.ops.aten
    return func in (aten.fill_.Scalar, aten.zero_.default) and args[1:] in ((), (0,))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _addresses(model: Any) -> dict[str, int]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: int(each.data_ptr()) for name, each in named}
