"""The loader with which vLLM reads the weights that a process starts on.

vLLM chooses and reads the files itself. Each tensor must have the digest that the worker has computed, before
the model gets it. Another process may write to the files meanwhile.

Source: `DefaultModelLoader._get_weights_iterator` and `register_model_loader` of vLLM.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet_worker.engine.file_tensors import Digested, Reader, compared
from fleet_worker.engine.start_names import DIGESTS_FILE, LOAD_FORMAT, START_PREFIX
from fleet_worker.engine.vllm_names import LOADERS


def register() -> None:
    """Make the loader known to vLLM in this process."""
    loaders = importlib.import_module(LOADERS)

    class DigestedLoader(loaders.DefaultModelLoader):  # type: ignore[misc, name-defined]  # vLLM is not there
        """vLLM's own loader of safetensors, whose tensors are compared."""

        def __init__(self, load_config: Any) -> None:
            # Otherwise vLLM prefers consolidated*.safetensors.
            super().__init__(replace(load_config, load_format="safetensors"))

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            digested = _digested(Path(source.model_or_path))
            if digested is None:
                yield from super()._get_weights_iterator(source)
                return
            weights = super()._get_weights_iterator(replace(source, prefix=""))
            for name, tensor in compared(weights, digested):
                yield source.prefix + name, tensor

    loaders.register_model_loader(LOAD_FORMAT)(DigestedLoader)


def _digested(folder: Path) -> Digested | None:
    """Return the digests for the directory of a start, whose headers have these tensors.

    None for a draft model, and for weights in sealed memory, which need no comparison.
    """
    if not folder.name.startswith(START_PREFIX):
        return None
    digests = json.loads((folder / DIGESTS_FILE).read_text())
    if digests is None:
        return None
    digested = Digested(digests)
    names: list[str] = []
    for path in folder.glob("*.safetensors"):
        with closing(Reader(str(path), digested)) as reader:
            names += [spec.name for spec in reader.specs]
    digested.check_names(names)
    return digested
