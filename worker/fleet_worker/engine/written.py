"""The parameters of a load: those it must write, and those it only seems to write.

While vLLM reloads, parameters have no storage (they are on torch's `meta` device), and their loaders keep what
arrives. Some models copy a tensor into the parameter itself, and name it as written (`GptOssModel`). The
copy goes nowhere, and vLLM puts the former values back.

Source: `model_loader.reload.layerwise` and `GptOssModel.load_weights`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from fleet_worker.engine.unfinished import LAYERWISE

META = "vllm.model_executor.model_loader.reload.meta"
_ATTRIBUTE = "load_weights"


class Recorder:
    """Records what the model's `load_weights` writes.

    Fields:
        written: names of the parameters; None if the model does not name them.
    """

    def __init__(self, model: Any) -> None:
        """Wrap the method of this model until `remove`."""
        self._model = model
        self._load = model.load_weights
        self.written: set[str] | None = None
        setattr(model, _ATTRIBUTE, self._record)

    def remove(self) -> None:
        """Give the model its own method back. Safe to call again."""
        vars(self._model).pop(_ATTRIBUTE, None)

    def check_kept(self) -> None:
        """Fail if a parameter that the model names as written has lost its values.

        Call it before the reload ends.

        Errors:
            RuntimeError: naming a parameter.
        """
        if lost := sorted(self.written & set(_without_values(self._model)) if self.written else ()):
            raise RuntimeError(
                f"vLLM loses {len(lost)} parameters of this model when it reloads, such as {lost[0]};"
                " a new version of such a model needs workers that start on it"
            )

    def _record(self, weights: Any) -> set[str] | None:
        names = self._load(weights)
        if names is not None:
            self.written = (self.written or set()) | {plain(name) for name in names}
        self.check_kept()
        written: set[str] | None = names
        return written


def required(model: Any) -> set[str]:
    """Return the names of the parameters that a load must write.

    Parameters with one element are scales that layers compute. Others that a layer has added after it was
    made come from its weights, such as `W_UV` of multi-head latent attention.
    """
    layerwise = importlib.import_module(LAYERWISE)
    skipped = importlib.import_module(META).SKIP_TENSORS
    added = set()
    for prefix, layer in model.named_modules():
        made = layerwise.get_layerwise_info(layer).restore_metadata[0]
        added |= {_name(prefix, n) for n in _own(layer) if n not in made and n not in skipped}
    return {plain(n) for n, p in model.named_parameters() if p.numel() > 1} - added


def plain(name: str) -> str:
    """Return the name of a parameter without the wrapper that LoRA adds to layers."""
    return name.replace(".base_layer.", ".")


def _without_values(model: Any) -> Iterator[str]:
    """Yield the parameters that have no storage, and of which no loader keeps values."""
    layerwise = importlib.import_module(LAYERWISE)
    for prefix, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            kept = {name for name, _ in info.loaded_weights}
            own = _own(layer)
            yield from (_name(prefix, n) for n, p in own.items() if p.is_meta and n not in kept)


def _own(layer: Any) -> dict[str, Any]:
    parameters: Iterable[tuple[str, Any]] = layer.named_parameters(recurse=False)
    return dict(parameters)


def _name(prefix: str, name: str) -> str:
    return plain(f"{prefix}.{name}" if prefix else name)
