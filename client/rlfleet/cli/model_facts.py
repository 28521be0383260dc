"""Reads the size and the shape of a model before a cluster has it: from its directory, or from the Hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlfleet.words import bounded

_TIMEOUT_SECONDS = 10.0
_LARGEST_CONFIG = 1_000_000
_MOST = 10**9
"""Of a number of a configuration: another one is not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model. None where something could not be read.

    Fields:
        checkpoint_bytes: of its files with tensors.
        heads: of its attention, which tensor parallelism divides.
        longest: its longest sequence, in tokens.
        unread: why something could not be read; empty if all was.
    """

    checkpoint_bytes: int | None = None
    heads: int | None = None
    longest: int | None = None
    unread: str = ""


def checkpoint_bytes(folder: Path) -> int | None:
    """Bytes of the tensors in a directory; None if this machine sees none there."""
    try:
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
    except (OSError, ValueError):
        return None


def facts_of_directory(folder: Path) -> ModelFacts:
    """The model of a directory of this machine."""
    size = checkpoint_bytes(folder)
    unread = "" if size else f"{folder} has no *.safetensors"
    return _facts(size, folder / "config.json", unread)


def facts_of_repository(repository: str, revision: str) -> ModelFacts:
    """The model of a repository, asked from the Hub. Only its `config.json` is downloaded."""
    try:
        from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return ModelFacts(unread="huggingface_hub is not installed here")
    try:
        found = HfApi().model_info(
            repository, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
        )
        files = {one.rfilename: one.size or 0 for one in found.siblings or ()}
    except Exception as error:  # noqa: BLE001 - the library has errors of its own and of its HTTP client
        return ModelFacts(unread=bounded(f"{type(error).__name__}: {error}", 200))
    # Some repositories have all tensors twice.
    size = sum(
        size
        for name, size in files.items()
        if name.endswith(".safetensors") and "/" not in name and not name.startswith("consolidated")
    )
    unread = "" if size else "the repository has no *.safetensors"
    try:
        config = Path(hf_hub_download(repository, "config.json", revision=revision))
    except Exception as error:  # noqa: BLE001 - as above, such as for a gated model
        return ModelFacts(
            checkpoint_bytes=size or None,
            unread=bounded(f"config.json: {type(error).__name__}: {error}", 200),
        )
    return _facts(size or None, config, unread)


def _facts(size: int | None, config: Path, unread: str) -> ModelFacts:
    try:
        with config.open(encoding="utf-8") as file:
            found = json.loads(file.read(_LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        why = bounded(f"{config.name}: {error}", 200)
        return ModelFacts(checkpoint_bytes=size, unread=unread or why)
    return ModelFacts(
        checkpoint_bytes=size,
        heads=_number(found, "num_attention_heads"),
        longest=_number(found, "max_position_embeddings"),
        unread=unread,
    )


def _number(config: Any, name: str) -> int | None:
    """A number of the language model, which is a part of the configuration of some models."""
    for part in (config, config.get("text_config") if isinstance(config, dict) else None):
        value = part.get(name) if isinstance(part, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
            return value
    return None
