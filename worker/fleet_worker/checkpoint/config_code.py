"""Which keys of config.json the code that computes a model could read.

Trainers write keys of their own into config.json (`unsloth_version`), and no list of them stays complete.
So the worker looks for a key's name in the code that builds the model: vLLM's code of all models, and
transformers' code of the model's own type. A name that does not occur there cannot be read. A name that
occurs may be read, also if it means something else there. That is the safe side: such a key is compared.

Names that the code puts together (`f"pos_emb_{dim}"`) are not found. vLLM 0.32 does so for keys of one
model, Kimi-K2.5, whose configuration class names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

_WORD = re.compile(r"\w+")
_NAMES_A_CONFIGURATION = re.compile(r"hf_\w*config|pretrained_?config", re.IGNORECASE)
"""How vLLM's code outside of its models names a configuration of transformers."""
_OF_MODELS = ("config", "model_executor", "models", "transformers_utils")
"""Folders of vLLM whose code also gets a configuration under other names."""
_OF_ALL_TYPES = ("cache_utils.py", "configuration_utils.py", "masking_utils.py", "modeling_*.py")
"""Code of transformers that all types of models share."""


@dataclass(frozen=True, slots=True)
class ConfigCode:
    """The code that computes one model.

    Fields:
        nested: keys whose values are configurations, too, with keys of their own.
        words: all words of the code. None if a part of the code cannot be seen.
    """

    nested: frozenset[str] = frozenset()
    words: frozenset[str] | None = None

    def could_read(self, key: str) -> bool:
        """Whether the code could read a key. It could, if a part of the code cannot be seen."""
        return self.words is None or self.words.issuperset(_WORD.findall(key))


def code_of(
    auto_map: Any, directory: str | None, classes: Iterable[Path], nested: Iterable[str]
) -> ConfigCode:
    """Return the code that computes a model. Reads some thousand files, in about a second.

    Args:
        auto_map: The key of this name in the model's configuration: classes of its own code.
        directory: Directory of the model, with its own code; None if it has none.
        classes: Files of transformers with the classes of the configuration and of those in it.
        nested: See `ConfigCode`.
    """
    vllm = _folder_of("vllm")
    if vllm is None or _is_in_another_repository(auto_map):
        return ConfigCode(frozenset(nested))
    files = set() if directory is None else set(Path(directory).glob("*.py"))
    for folder in {file.parent for file in classes}:
        files.update(folder.glob("*.py"))
    if (transformers := _folder_of("transformers")) is not None:
        for names in _OF_ALL_TYPES:
            files.update(transformers.glob(names))
    words: set[str] = set()
    for text in chain(_texts_of_vllm(vllm), map(_text, files)):
        words.update(_WORD.findall(text))
    return ConfigCode(frozenset(nested), frozenset(words))


def _texts_of_vllm(vllm: Path) -> Iterator[str]:
    for file in vllm.rglob("*.py"):
        text = _text(file)
        if file.relative_to(vllm).parts[0] in _OF_MODELS or _NAMES_A_CONFIGURATION.search(text):
            yield text


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _is_in_another_repository(auto_map: Any) -> bool:
    """Whether classes are in another repository than the model (`REPO--file.Class`)."""
    return "--" in str(auto_map)
