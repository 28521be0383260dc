"""Names of one set of weights: three fields for clients, one label in the engine.

```
clients   version 40, run run-7, digest 3fa9c1d04b2e     every place that shows a version
engine    40@3fa9c1d04b2e                                one opaque string: vLLM's weight version
```

Two runs may use the same numbers, so a version alone does not identify weights. If the engine had one
label for two sets of weights, it would join their tokens to one span. A version cannot contain `@`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

# As many as `labels` remembers.
_REMEMBERED = 4096
_DIGITS = 12
_DIGEST = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WeightName:
    """Name of one set of weights in spans, headers and metrics.

    Fields:
        run_id: the training run that the version belongs to, if a call named one.
        digest: the first 12 hex digits of the digest. None for weights that came over a collective.
    """

    version: str
    run_id: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return described(self.version, self.run_id, self.digest)


def short_digest(digest: str) -> str:
    """Return the first 12 hex digits of `sha256:<64 hex digits>`, for spans and labels."""
    return digest.rpartition(":")[2][:_DIGITS]


def described(version: str | None, run_id: str | None, digest: str | None) -> str:
    """Return the name of weights for a message, with the fields that are known."""
    text = f"version {version}" if version is not None else "no version"
    text += f" of run {run_id}" if run_id is not None else ""
    return text + (f" with digest {digest}" if digest is not None else "")


class WeightNames:
    """The engine's labels and the names of their weights. No label gets a second name.

    Fields:
        order: name → number of its latest load. The greater number is the newer weights.
    """

    def __init__(self) -> None:
        self.order: OrderedDict[WeightName, int] = OrderedDict()
        self._named: OrderedDict[str, WeightName] = OrderedDict()
        self._loads = 0

    def label_of(self, name: WeightName, mark: str) -> str:
        """Return the engine's label of weights, the same for the same name and mark.

        Args:
            name: Name of the weights.
            mark: Differs from that of all other weights of the version, e.g. their digest.
        """
        label = plain = f"{name.version}@{mark}"
        suffix = 1
        # Two runs may publish the same bytes under the same number.
        while self._named.get(label, name) != name:
            suffix += 1
            label = f"{plain}.{suffix}"
        self._named[label] = name
        self._named.move_to_end(label)
        while len(self._named) > _REMEMBERED:
            self._named.popitem(last=False)
        return label

    def name_of(self, label: str) -> WeightName:
        """Return the name of the weights of an engine's label. An old label may have lost its run."""
        known = self._named.get(label)
        if known is not None:
            return known
        version, _, mark = label.partition("@")
        mark = mark.partition(".")[0]
        return WeightName(version, digest=mark if _DIGEST.fullmatch(mark) else None)

    def note_loaded(self, name: WeightName) -> None:
        """Count a load."""
        self.order[name] = self._loads
        self.order.move_to_end(name)
        self._loads += 1
        while len(self.order) > _REMEMBERED:
            self.order.popitem(last=False)
