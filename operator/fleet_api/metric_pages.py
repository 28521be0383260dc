"""Joins the metrics of all workers to one page, for trainers that poll one address: pure.

Each sample gets the label `pod`. Trainers distinguish engines by the label `engine`, which is 0 at every
worker, so it gets the pod's name in front. Buckets of histograms are left out: trainers read sums and
counts, and buckets are most of a page. Prometheus scrapes the workers themselves.

Source: prime-rl's `orchestrator.inference_metrics`; vLLM's `v1.metrics.loggers`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_SAMPLE = re.compile(r'(vllm:[a-zA-Z0-9_:]+)\{((?:[a-z_]+="[^"\\\n]*",?)*)\} ([-+.0-9a-zA-Z]+)')
"""Labels of vLLM have no escapes: names of models, reasons and numbers."""
_ENGINE = re.compile(r'(^|,)engine="')
_KIND = re.compile(r"# TYPE (vllm:[a-zA-Z0-9_:]+) (counter|gauge)")
_MAX_LINES = 2000
"""Largest number of lines from one worker. Its image decides the page; vLLM has some hundred lines."""


def together(pages: Mapping[str, str]) -> str:
    """The joined page. `pages`: the page of each pod, by name."""
    samples: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    left = Counter(dict.fromkeys(pages, _MAX_LINES))
    for pod, page in pages.items():
        for line in page.splitlines():
            if found := _SAMPLE.fullmatch(line):
                name, labels, value = found.groups()
                if name.endswith("_bucket") or not left[pod]:
                    continue
                left[pod] -= 1
                labels = _ENGINE.sub(rf'\1engine="{pod}/', labels)
                samples.setdefault(name, []).append(f'{name}{{pod="{pod}",{labels}}} {value}\n')
            elif kind := _KIND.fullmatch(line):
                kinds.setdefault(kind[1], kind[2])
    return "".join(
        (f"# TYPE {name} {kinds[name]}\n" if name in kinds else "") + "".join(lines)
        for name, lines in samples.items()
    )
