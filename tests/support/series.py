"""The series that the pages about metrics list, and those that an expression selects."""

from __future__ import annotations

import re
from pathlib import Path

Series = dict[str, tuple[str, frozenset[str]]]
"""Name → type and labels."""

_PAGES = Path(__file__).parents[2] / "docs/reference"
_ROW = re.compile(r"^\| `(rlfleet_\w+?)(?:\{([\w,]+)\})?` \| (\w+) \|", re.MULTILINE)
_SELECTOR = re.compile(r"((?:rlfleet_|vllm:)\w+)(?:\{(.*?)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def _listed(page: str) -> Series:
    return {
        name: (kind, frozenset(labels.split(",")) - {""})
        for name, labels, kind in _ROW.findall((_PAGES / page).read_text())
    }


OPERATOR_SERIES = _listed("metrics.md")
WORKER_SERIES = _listed("worker.md")
RL_API_SERIES = _listed("rl-api.md")
_OF_THE_ENGINE = frozenset({"model_name", "engine"})
VLLM_SERIES: Series = {
    "vllm:generation_tokens_total": ("counter", _OF_THE_ENGINE),
    "vllm:time_to_first_token_seconds": ("histogram", _OF_THE_ENGINE),
    "vllm:kv_cache_usage_perc": ("gauge", _OF_THE_ENGINE),
    "vllm:prefix_cache_hits_total": ("counter", _OF_THE_ENGINE),
    "vllm:prefix_cache_queries_total": ("counter", _OF_THE_ENGINE),
}
"""Series of vLLM that the dashboards show, scraped from the workers. Source: `vllm/v1/metrics/loggers.py`."""
ALL_SERIES = VLLM_SERIES | OPERATOR_SERIES | WORKER_SERIES | RL_API_SERIES


def selectors(expression: str) -> list[tuple[str, frozenset[str]]]:
    """Name and labels of each selector."""
    return [
        (name, frozenset(_MATCHER.findall(matchers)))
        for name, matchers in _SELECTOR.findall(expression)
    ]
