"""The loader with which vLLM reads the weights that a process starts on.

vLLM chooses and reads the files itself. Each tensor must have the digest that the worker has computed, before
the model gets it. Another process may write to the files meanwhile.

Source: `DefaultModelLoader._get_weights_iterator` and `register_model_loader`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet_worker.engine.file_tensors import Digested, Reader, compared
from fleet_worker.engine.start_digests import LOAD_FORMAT, read_digests

LOADERS = "vllm.model_executor.model_loader"


def register() -> None:
    """Make the loader known to vLLM in this process."""
    loaders = importlib.import_module(LOADERS)

    class DigestedLoader(loaders.DefaultModelLoader):  # type: ignore[misc, name-defined]  # vLLM is not there
        """vLLM's own loader of safetensors, whose tensors are compared."""

        def __init__(self, load_config: Any) -> None:
            # Otherwise vLLM prefers consolidated*.safetensors.
            super().__init__(replace(load_config, load_format="safetensors"))

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            digests = read_digests(folder := Path(source.model_or_path))
            if digests is None:  # a draft model
                yield from super()._get_weights_iterator(source)
                return
            digested = Digested(digests)
            _check_names(folder, digested)
            weights = super()._get_weights_iterator(replace(source, prefix=""))
            for name, tensor in compared(weights, digested):
                yield source.prefix + name, tensor

    loaders.register_model_loader(LOAD_FORMAT)(DigestedLoader)


def _check_names(folder: Path, digested: Digested) -> None:
    names: list[str] = []
    for path in folder.glob("*.safetensors"):
        with closing(Reader(str(path), digested)) as reader:
            names += [spec.name for spec in reader.specs]
    digested.check_names(names)
