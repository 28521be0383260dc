"""One label, one set of weights: what each version name has stood for since the process started."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

# A trainer with a step a minute fills this in three days; what is older than that has left every
# replay buffer that could mix the two meanings up.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """What a set of weights is recognised by, without reading it again.

    Fields:
        source: Where it came from, in words.
        files: (name, size, inode, modification time in ns) of every file, sorted by name.
    """

    source: str
    files: tuple[tuple[str, int, int, int], ...]


class Labels:
    """Remembers which weights a label stands for."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Identity] = OrderedDict()
        self.order: dict[str, int] = {}
        """Label → number of its latest load: which of two versions is the newer one."""
        self._loads = 0

    def check(self, label: str, identity: Identity) -> None:
        """Make sure that the label is new, or stands for just these weights.

        Errors:
            Refusal: `VersionReused`: tokens already carry this label for other weights.
        """
        known = self._known.get(label)
        if known is None or known.files == identity.files:
            return
        raise Refusal(
            Reason.VERSION_REUSED,
            f"version {label} already stands for the weights from {known.source} on this worker"
            " (or for an earlier state of these files); give other weights another version",
        )

    def identity_of(self, label: str) -> Identity:
        """What a label stands for; it must be one of the latest."""
        return self._known[label]

    def remember(self, label: str, identity: Identity) -> None:
        """Note what a label stands for from now on."""
        self._known[label] = identity
        self._known.move_to_end(label)
        self.order[label] = self._loads
        self._loads += 1
        while len(self._known) > _REMEMBERED:
            oldest, _ = self._known.popitem(last=False)
            del self.order[oldest]
