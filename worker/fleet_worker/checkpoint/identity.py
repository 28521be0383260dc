"""The identity of weights: the digest of their bytes, and the names that they have.

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
from dataclasses import dataclass, field

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason, parent_of_step


def check_digest(wanted: str | None, found: str, what: str) -> None:
    """Refuse bytes with another digest.

    Args:
        wanted: The digest to compare with. None accepts all.
        found: Digest of the bytes.
        what: Plural name of the bytes, for the message.

    Errors:
        Refusal: `DigestMismatch`.
    """
    if wanted not in (None, found):
        raise Refusal(
            Reason.DIGEST_MISMATCH,
            f"{what} have digest {found}, expected {wanted}. Restore the files, or publish them as"
            " another version",
        )


# A trainer with one step per minute fills this in three days. By then no replay buffer has tokens of
# the older meaning of a label.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of files that were read, to recognise them without reading them again.

    Fields:
        source: Their place, as text.
        files: (name, size, inode, modification time in ns) of every file, sorted by name.
    """

    source: str
    files: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A version and its scope. The same version in another scope is another label.

    Fields:
        scope: The run that the version belongs to. If a trainer names no runs, the path of its
            directory, because another run writes to another directory.
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
    """Remembers the digest of each label."""

    def __init__(self) -> None:
        self._known: OrderedDict[Label, _Known] = OrderedDict()

    def is_free(self, label: Label, digest: str) -> bool:
        """Return whether a label names no other bytes than those with this digest."""
        known = self._known.get(label)
        return known is None or known.digest == digest

    def check(self, label: Label, digest: str, source: str) -> None:
        """Refuse a label that already names other bytes.

        Args:
            label: The label of the weights.
            digest: Digest of their bytes.
            source: Their place, for the message.

        Errors:
            Refusal: `VersionReused`, because tokens already carry this label for other weights.
        """
        if self.is_free(label, digest):
            return
        known = self._known[label]
        raise Refusal(
            Reason.VERSION_REUSED,
            f"{label} already names the weights from {known.source} with {known.digest} on this"
            f" worker; those from {source} have {digest}. Publish other weights under another"
            " version or another run",
        )

    def remember(self, label: Label, digest: str, source: str) -> None:
        """Note the digest of a label."""
        self._known[label] = _Known(digest, source)
        self._known.move_to_end(label)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)


# As many as `labels` remembers.
_DIGITS = 12
_DIGEST = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WeightName:
    """Name of one set of weights in spans, headers and metrics.

    Fields:
        run_id: the training run that the version belongs to, if a call named one; of weights that came
            over a collective, the run of their process group.
        digest: the first 12 hex digits of the digest. None for weights that came over a collective.
        scope: what counts as the run where a trainer names directories and no runs: the directory of
            its steps (`scope_of`). Versions are ordered within it. It does not identify weights,
            because two directories may hold the same bytes.
    """

    version: str
    run_id: str | None = None
    digest: str | None = None
    scope: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return described(self.version, self.run_id, self.digest)


def scope_of(path: str) -> str:
    """Return what counts as the run, where a trainer names directories and no runs.

    `/checkpoints/run-7/step_41` and `…/step_42` are steps of one run, which writes to
    `/checkpoints/run-7`. Every other directory is a run of its own.

    Args:
        path: Real path of the directory of the weights.
    """
    return parent_of_step(path) or path


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

        `mark`: differs from that of all other weights of the version, e.g. their digest.
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
