"""One version of a run, one set of bytes: what each has stood for since the process started."""

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
    """What files are recognised by, without reading them again.

    Fields:
        source: Where they are, in words.
        files: (name, size, inode, modification time in ns) of every file, sorted by name.
    """

    source: str
    files: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A version, and whose it is: two with other scopes have nothing to do with each other.

    Fields:
        scope: The run that it belongs to. A trainer that names directories and no runs begins
            another run by writing to another directory: there it is the directory's path.
    """

    version: str
    scope: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" + (f" of {self.scope}" if self.scope is not None else "")


@dataclass(frozen=True, slots=True)
class _Known:
    digest: str
    source: str


class Labels:
    """Remembers which bytes a label stands for."""

    def __init__(self) -> None:
        self._known: OrderedDict[Label, _Known] = OrderedDict()

    def check(self, label: Label, digest: str, source: str) -> None:
        """Make sure that the label is new, or stands for just these bytes, wherever they lie.

        Args:
            label: What they are to be called.
            digest: Of the bytes.
            source: Where they come from, for the message.

        Errors:
            Refusal: `VersionReused`: tokens already carry this label for other weights.
        """
        known = self._known.get(label)
        if known is None or known.digest == digest:
            return
        raise Refusal(
            Reason.VERSION_REUSED,
            f"{label} already stands on this worker for the weights from {known.source} with"
            f" {known.digest}; those from {source} have {digest}. Give other weights another"
            " number, or publish them as another run",
        )

    def remember(self, label: Label, digest: str, source: str) -> None:
        """Note what a label stands for from now on."""
        self._known[label] = _Known(digest, source)
        self._known.move_to_end(label)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)
