"""What one set of weights is called: by three words outside, by one inside of the engine.

```
outside   version 40, run run-7, digest 3fa9c1d04b2e     every place that shows a version
engine    40@3fa9c1d04b2e                                one opaque string: vLLM's weight version
```

Two runs may count alike, so a version alone names nothing: the engine must never see one label for
two sets of weights, or it would join their tokens to one span. `@` cannot occur in a version.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

# As many loads as `labels` remembers versions.
_REMEMBERED = 4096
_DIGITS = 12
_DIGEST = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WeightName:
    """What spans, headers and metrics call one set of weights.

    Fields:
        run_id: the training run that the version belongs to, if one was named.
        digest: the first 12 hex digits of the digest; None for weights that came over a collective.
    """

    version: str
    run_id: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return described(self.version, self.run_id, self.digest)


def short_digest(digest: str) -> str:
    """The first 12 hex digits of `sha256:<64 hex digits>`, as spans and labels carry them."""
    return digest.rpartition(":")[2][:_DIGITS]


def described(version: str | None, run_id: str | None, digest: str | None) -> str:
    """Weights in words, with whatever is known of them."""
    words = f"version {version}" if version is not None else "no version"
    words += f" of run {run_id}" if run_id is not None else ""
    return words + (f" with digest {digest}" if digest is not None else "")


class WeightNames:
    """The engine's labels and what they stand for; no label ever stands for two names.

    Fields:
        order: name → number of its latest load: which of two sets of weights is the newer one.
    """

    def __init__(self) -> None:
        self.order: OrderedDict[WeightName, int] = OrderedDict()
        self._named: OrderedDict[str, WeightName] = OrderedDict()
        self._loads = 0

    def label_of(self, name: WeightName, mark: str) -> str:
        """The engine's label of some weights; the same for the same name and mark.

        Args:
            name: Theirs.
            mark: What tells them from all other weights of their version, e.g. their digest.
        """
        label = plain = f"{name.version}@{mark}"
        other = 1
        # Two runs may publish the same bytes under the same number.
        while self._named.get(label, name) != name:
            other += 1
            label = f"{plain}.{other}"
        self._named[label] = name
        self._named.move_to_end(label)
        while len(self._named) > _REMEMBERED:
            self._named.popitem(last=False)
        return label

    def name_of(self, label: str) -> WeightName:
        """What a label of the engine stands for; of one long forgotten, all but the run."""
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
