"""The parameters of a load: those it must write, and those it only seems to write.

While vLLM reloads, parameters have no storage (they are on torch's `meta` device), and their loaders keep what
arrives. Some models copy a tensor into the parameter itself, and name it as written (`GptOssModel`). The
copy goes nowhere, and vLLM puts the former values back. Other models name nothing.

Source: `model_loader.reload.layerwise` and `GptOssModel.load_weights` of vLLM.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from fleet_worker.engine.vllm_names import LAYERWISE, META

_ATTRIBUTE = "load_weights"


class Recorder:
    """Records what the model's `load_weights` writes.

    Fields:
        required: names of the parameters that a whole load must write.
        written: names of the parameters; None if the model does not name them.
        left_out: names of the layers that got no weights. Known after `look`.
    """

    def __init__(self, model: Any, *, is_whole: bool, may_lose: bool = False) -> None:
        """Wrap the method of this model until `remove`.

        Args:
            model: The engine's model.
            is_whole: The first call brings all weights, and the reload ends right after it.
            may_lose: The former values of a parameter are those of this load, too.
        """
        self._model, self._is_whole, self._may_lose = model, is_whole, may_lose
        self._load = model.load_weights
        self.required = required(model)
        self._is_unnamed = False
        self.written: set[str] | None = None
        self.left_out: frozenset[str] = frozenset()
        setattr(model, _ATTRIBUTE, self._record)

    def remove(self) -> None:
        """Give the model its own method back. Safe to call again."""
        vars(self._model).pop(_ATTRIBUTE, None)

    def look(self) -> None:
        """Find the layers without weights. Call it when all have arrived, before the reload ends.

        Errors:
            RuntimeError: A parameter that the model names as written has lost its values. Or the model names
                nothing, and a parameter has got none.
        """
        waiting = list(_waiting_layers(self._model))
        self.left_out = frozenset(name for name, _, kept in waiting if not kept)
        without = {_name(prefix, n) for prefix, names, kept in waiting for n in names - kept}
        lost = sorted(without & (self.required if self._is_unnamed else self.written or set()))
        if lost and not self._may_lose:
            raise RuntimeError(
                f"vLLM loses {len(lost)} {'parameter' if len(lost) == 1 else 'parameters'} of this"
                f" model when it reloads, such as {lost[0]};"
                " a new version of such a model needs workers that start on it"
            )

    def _record(self, weights: Any) -> set[str] | None:
        names: set[str] | None = self._load(weights)
        if names is None:
            self._is_unnamed = True
        else:
            self.written = (self.written or set()) | {plain(name) for name in names}
        if self._is_whole:
            self.look()
        return names


def required(model: Any) -> set[str]:
    """Return the names of the parameters that a load must write.

    Parameters with one element are scales that layers compute. Others that a layer has added after it was
    made come from its weights, such as `W_UV` of multi-head latent attention. Kernels may have freed a weight:
    its size is that of when its layer was made.
    """
    layerwise = importlib.import_module(LAYERWISE)
    skipped = importlib.import_module(META).SKIP_TENSORS
    made, added = dict[str, Any](), set()
    for prefix, layer in model.named_modules():
        first = layerwise.get_layerwise_info(layer).restore_metadata[0]
        made |= {_name(prefix, name): parameter for name, parameter in first.items()}
        added |= {_name(prefix, n) for n in _own(layer) if n not in first and n not in skipped}
    found = {plain(name): parameter for name, parameter in model.named_parameters()}
    return {name for name, now in found.items() if made.get(name, now).numel() > 1} - added


def plain(name: str) -> str:
    """Return the name of a parameter without the wrapper that LoRA adds to layers."""
    return name.replace(".base_layer.", ".")


def _waiting_layers(model: Any) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the layers that a reload has not finished.

    Yields:
        Name of the layer, its parameters without storage, and those of which loaders keep values.
    """
    layerwise = importlib.import_module(LAYERWISE)
    for prefix, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            empty = {name for name, p in _own(layer).items() if p.is_meta}
            yield prefix, empty, {name for name, _ in info.loaded_weights}


def _own(layer: Any) -> dict[str, Any]:
    parameters: Iterable[tuple[str, Any]] = layer.named_parameters(recurse=False)
    return dict(parameters)


def _name(prefix: str, name: str) -> str:
    return plain(f"{prefix}.{name}" if prefix else name)
