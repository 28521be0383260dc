"""The scale of a LoRA adapter in a module: W + scale · B A.

Source: LoRA (https://arxiv.org/abs/2106.09685), rsLoRA (https://arxiv.org/abs/2312.03732), and PEFT's
`get_pattern_key` for the names in `rank_pattern` and `alpha_pattern`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

_REPEATS = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MAX_REPEATS = 3


def scale_of(config: Mapping[str, Any], module: str) -> float:
    """Return the factor of `B A` in a module. `config`: checked. `module`: its name in the model, with dots."""
    rank = rank_of(config, module)
    alpha = _of_module(config, "alpha_pattern", module, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def rank_of(config: Mapping[str, Any], module: str) -> int:
    """Return the rank of a module's two matrices. The arguments are those of `scale_of`."""
    return int(_of_module(config, "rank_pattern", module, config["r"]))


@functools.lru_cache(maxsize=4096)
def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a key of `rank_pattern` or `alpha_pattern`. Cached, because there may be many.

    Errors:
        re.error: for an invalid regular expression.
    """
    return re.compile(rf"(.*\.)?({text})")


def is_quick(text: str) -> bool:
    """Return whether a pattern matches fast on every module name, of at most a hundred characters.

    Python's backtracking takes exponential time for a repeated group. Each repeated character
    multiplies the time by the length of the name. The check counts these signs, on the safe side.
    """
    return len(_REPEATS.findall(text)) <= _MAX_REPEATS and not _REPEATED_GROUP.search(text)


def _of_module(config: Mapping[str, Any], key: str, module: str, plain: float) -> float:
    """Return the value of the first pattern that matches the end of a module's name, from a dot."""
    patterns: Mapping[str, float] = config.get(key) or {}
    return next((v for text, v in patterns.items() if pattern_of(text).fullmatch(module)), plain)
