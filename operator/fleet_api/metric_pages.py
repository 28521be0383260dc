"""Joins the metrics of all workers to one page, for trainers that poll one address: pure.

Each sample gets the label `pod`. Trainers distinguish engines by the label `engine`, which is 0 at every
worker, so it gets the pod's name in front. Buckets of histograms are left out: trainers read sums and
counts, and buckets are most of a page. Prometheus scrapes the workers themselves.

Source: prime-rl's `orchestrator.inference_metrics`; vLLM's `v1.metrics.loggers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAMPLE = re.compile(r'(vllm:[a-zA-Z0-9_:]+)\{((?:[a-z_]+="[^"\\\n]*",?)*)\} ([-+.0-9a-zA-Z]+)')
"""Labels of vLLM have no escapes: names of models, reasons and numbers."""
_ENGINE = re.compile(r'(^|,)engine="')
_KIND = re.compile(r"# TYPE (vllm:[a-zA-Z0-9_:]+) (counter|gauge)")
_BUCKET = b"_bucket{"
_MAX_LINES = 2000
"""Largest number of lines from one worker. Its image decides the page; vLLM has some hundred lines."""
_MAX_LINE_BYTES = 4096
"""The longest line of vLLM, the configuration of the cache, has less than half of it."""

_COPIES, _LINE_BYTES = 3, 300
"""A kept line is in memory by itself, in the joined page and in the reply. Its objects take some bytes more."""


class Page:
    """The kept lines of the page of one worker, which comes in parts. `pod`: its name.

    Fields:
        samples: names, and lines with the pod.
        kinds: counter or gauge, by name.
        kept_bytes: memory of both until the pages are joined.
        is_cut: there was no memory for the rest.
    """

    def __init__(self, pod: str) -> None:
        self.samples: list[tuple[str, str]] = []
        self.kinds: dict[str, str] = {}
        self.kept_bytes = 0
        self.is_cut = False
        self._pod = pod
        self._rest = b""
        self._left = _MAX_LINES

    def take(self, part: bytes) -> None:
        """Read the next part. The last line must end with a newline."""
        *lines, rest = (self._rest + part).split(b"\n")
        self._rest = rest[: _MAX_LINE_BYTES + 1]  # enough to know that it is too long
        for line in lines:
            if _BUCKET not in line and len(line) <= _MAX_LINE_BYTES and self._left:
                self._read(line)

    def _read(self, line: bytes) -> None:
        if not line.startswith((b"vllm:", b"# TYPE vllm:")):
            return
        self._left -= 1
        text = line.decode(errors="replace")
        if not text.isprintable():  # readers of the page may end a line there
            return
        if found := _SAMPLE.fullmatch(text):
            name, labels, value = found.groups()
            labels = _ENGINE.sub(rf'\1engine="{self._pod}/', labels)
            self.samples.append((name, f'{name}{{pod="{self._pod}",{labels}}} {value}\n'))
        elif kind := _KIND.fullmatch(text):
            self.kinds.setdefault(kind[1], kind[2])
        else:
            return
        self.kept_bytes += _COPIES * len(text) + _LINE_BYTES


def together(pages: Iterable[Page]) -> str:
    """The joined page."""
    samples: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for page in pages:
        kinds = page.kinds | kinds
        for name, line in page.samples:
            samples.setdefault(name, []).append(line)
    return "".join(
        (f"# TYPE {name} {kinds[name]}\n" if name in kinds else "") + "".join(lines)
        for name, lines in samples.items()
    )
