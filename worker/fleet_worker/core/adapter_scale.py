"""How strongly a LoRA adapter counts in a module: W + scale · B A.

Source: LoRA (https://arxiv.org/abs/2106.09685) and rsLoRA (https://arxiv.org/abs/2312.03732); how
PEFT's `rank_pattern` and `alpha_pattern` name modules: `get_pattern_key`, PEFT.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

_REPEATS = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MOST_REPEATS = 3


def scale_of(config: Mapping[str, Any], module: str) -> float:
    """The factor of `B A` in a module.

    Args:
        config: Content of `adapter_config.json`, checked.
        module: Its name in the model, with dots.
    """
    rank = rank_of(config, module)
    alpha = _of_module(config, "alpha_pattern", module, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def rank_of(config: Mapping[str, Any], module: str) -> int:
    """The rank of a module's two matrices; the arguments are those of `scale_of`."""
    return int(_of_module(config, "rank_pattern", module, config["r"]))


@functools.lru_cache(maxsize=4096)
def pattern_of(text: str) -> re.Pattern[str]:
    """What a key of `rank_pattern` or `alpha_pattern` matches; kept, for there may be many.

    Errors:
        re.error: if it is no regular expression.
    """
    return re.compile(rf"(.*\.)?({text})")


def is_quick(text: str) -> bool:
    """Whether a pattern ends soon on every module's name, which has a hundred characters at most.

    Python goes back over all ways to match: repeated groups take exponential time, and each repeated
    character multiplies it by the length of the name. Judged by its signs, on the safe side.
    """
    return len(_REPEATS.findall(text)) <= _MOST_REPEATS and not _REPEATED_GROUP.search(text)


def _of_module(config: Mapping[str, Any], key: str, module: str, plain: float) -> float:
    """The value of the first pattern that is the end of a module's name, from a dot on."""
    patterns: Mapping[str, float] = config.get(key) or {}
    return next((v for text, v in patterns.items() if pattern_of(text).fullmatch(module)), plain)
