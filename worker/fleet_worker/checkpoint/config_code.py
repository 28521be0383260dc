"""Which keys of config.json the code that computes a model could read.

Trainers write keys of their own into config.json (`unsloth_version`), and no list of them stays complete.
So the worker looks for a key's name in the code that builds the model. Code of the model itself is what
vLLM's registry names for its architectures, with what that imports, and transformers' code of its type:
each name there counts. vLLM's code of all models reads other configurations, too: there a name counts that
is read from a configuration, or is a string. Words of comments do not count.

A name that does not occur there cannot be read. A name that occurs may be read, also if it means something
else there. That is the safe side: such a key is compared.

Names that the code puts together (`f"pos_emb_{dim}"`) are not found. vLLM does so for keys of one
model, Kimi-K2.5, whose configuration class names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\.(\w+)|['\"](\w+)['\"]|(\w+)\s*[:=]")
"""An attribute, a string, or what has a value or a type."""
_READ = re.compile(r"(?:config|cfg)\w*(?=\.(\w+))|['\"](\w+)['\"]")
"""A key that is read from a configuration, or from one in it; or a string."""
_NAMES_A_CONFIGURATION = re.compile(r"hf_\w*config|pretrained_?config", re.IGNORECASE)
"""How vLLM's code outside of its models names a configuration of transformers."""
_OF_MODELS = ("config", "model_executor", "models", "transformers_utils")
"""Folders of vLLM whose code also gets a configuration under other names."""
_OF_ALL_TYPES = ("cache_utils.py", "configuration_utils.py", "masking_utils.py", "modeling_*.py")
"""Code of transformers that all types of models share."""
_MODELS = "model_executor/models"
_REGISTERED = re.compile(r'"(\w+)":\s*\(\s*"([\w.]+)"')
"""Class and module of a model. Source: `vllm/model_executor/models/registry.py` of vLLM."""
_IMPORT = re.compile(r"from (?:vllm\.model_executor\.models)?\.(\w+) import")
_BUILDS_ANY_MODEL = re.compile(r"(?<!def )init_vllm_registered_model|vllm\.models\b")
"""A call that looks into the registry, or an import from vLLM's other folder of models."""
_LENGTHS = frozenset({"max_seq_length", "model_max_length", "seq_length"})
"""vLLM's code of all models reads these only for the longest request: that of the running model counts.

Source: `ModelArchConfigConvertorBase.derive_max_model_len_and_key` of vLLM.
"""


@dataclass(frozen=True, slots=True)
class ConfigCode:
    """The code that computes one model.

    Fields:
        nested: keys whose values are configurations, too, with keys of their own.
        names: all names of the code. None if a part of the code cannot be seen.
    """

    nested: frozenset[str] = frozenset()
    names: frozenset[str] | None = None

    def could_read(self, key: str) -> bool:
        """Whether the code could read a key. It could, if a part of the code cannot be seen."""
        return self.names is None or self.names.issuperset(_WORD.findall(key))


def code_of(
    config: dict[str, Any],
    directory: str | None,
    classes: Sequence[Path],
    nested: Iterable[str],
) -> ConfigCode:
    """Return the code that computes a model. Reads some thousand files, in about two seconds.

    Args:
        config: The model's configuration: its architectures, and `auto_map`, classes of its own code.
        directory: Directory of the model, with its own code; None if it has none.
        classes: Files of transformers with the classes of the configuration and of those in it.
        nested: See `ConfigCode`.
    """
    vllm = _folder_of("vllm")
    if vllm is None or _is_in_another_repository(config.get("auto_map")):
        return ConfigCode(frozenset(nested))
    own = set() if directory is None else set(Path(directory).glob("*.py"))
    for folder in {file.parent for file in classes}:
        own.update(folder.glob("*.py"))
    if (transformers := _folder_of("transformers")) is not None:
        for names in _OF_ALL_TYPES:
            own.update(transformers.glob(names))
    registered = _registered(vllm)
    models = {*registered.values(), *(vllm / "models").rglob("*.py")}
    own |= _built_by(vllm, config.get("architectures"), registered) or models
    # The class of a type that transformers does not know is in vLLM's code of all models.
    pattern = _READ if classes else _NAME
    found, common = set[str](), set[str]()
    for file in own:
        found |= _names(_NAME, _text(file))
    for text in _common_texts(vllm, models):
        common |= _names(pattern, text)
    return ConfigCode(frozenset(nested), frozenset(found | (common - _LENGTHS)))


def _registered(vllm: Path) -> dict[str, Path]:
    """The architectures that vLLM has, each with its file."""
    models = vllm / _MODELS
    found = _REGISTERED.findall(_text(models / "registry.py"))
    return {name: models / f"{module}.py" for name, module in found}


def _built_by(vllm: Path, architectures: Any, registered: dict[str, Path]) -> set[Path] | None:
    """The files of vLLM that build a model. None if they could be those of any model."""
    if not isinstance(architectures, list) or not architectures:
        return None
    files, found = [registered.get(str(each)) for each in architectures], set[Path]()
    while files:
        file = files.pop()
        if file is None or not file.exists():
            return None
        if file in found:
            continue
        found.add(file)
        text = _text(file)
        if _BUILDS_ANY_MODEL.search(text):
            return None
        beside = (vllm / _MODELS / f"{module}.py" for module in _IMPORT.findall(text))
        files += [each for each in beside if each.exists()]
    return found


def _common_texts(vllm: Path, models: set[Path]) -> Iterator[str]:
    """vLLM's code that gets the configurations of all models."""
    for file in vllm.rglob("*.py"):
        if file in models:
            continue
        text = _text(file)
        if file.relative_to(vllm).parts[0] in _OF_MODELS or _NAMES_A_CONFIGURATION.search(text):
            yield text


def _names(pattern: re.Pattern[str], text: str) -> set[str]:
    return set().union(*pattern.findall(text))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # another release of vLLM
        return ""


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _is_in_another_repository(auto_map: Any) -> bool:
    """Whether classes are in another repository than the model (`REPO--file.Class`)."""
    return "--" in str(auto_map)
