"""Where the checkpoint of a version is, and which versions are next to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet_worker.audit.records import WITH

_DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class Source:
    """Where weights are: a checkpoint, and the adapter that lies over it, if any."""

    directory: str
    adapter: str | None = None


class UnknownVersionError(Exception):
    """No checkpoint was named for a version that a reply carries."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Named checkpoints and a template for the others.

    Fields:
        named: version → directory, in the order of the run.
        template: directory with `{version}` in it, or None.
        adapters: the same for versions of adapters; None if there are none.
    """

    named: dict[str, str]
    template: str | None = None
    adapters: Checkpoints | None = None

    @classmethod
    def parse(cls, arguments: Sequence[str], adapters: Sequence[str] = ()) -> Checkpoints:
        """From `VERSION=DIR` and `DIR/with/{version}`, and the same of adapters.

        Errors:
            ValueError: neither, or two templates.
        """
        named: dict[str, str] = {}
        templates = []
        for argument in arguments:
            version, equals, directory = argument.partition("=")
            if version and equals and "/" not in version and directory:
                named[version] = directory
            elif "{version}" in argument:
                templates.append(argument)
            else:
                raise ValueError(f"{argument!r} is neither VERSION=DIR nor a path with {{version}}")
        if len(templates) > 1:
            raise ValueError("at most one template can be given")
        beside = cls.parse(adapters) if adapters else None
        return cls(named, templates[0] if templates else None, beside)

    def source_of(self, weights: str) -> Source:
        """Where weights are. `weights`: as `SpanRecord.weights` names them.

        Errors:
            UnknownVersionError: nothing names them.
        """
        version, _, adapter = weights.partition(WITH)
        directory = self.directory_of(version)
        if not adapter:
            return Source(directory)
        if self.adapters is None:
            raise UnknownVersionError(f"no --adapters are given, and a reply names {adapter}")
        return Source(directory, self.adapters.directory_of(adapter))

    def directory_of(self, version: str) -> str:
        """The directory of a version's checkpoint.

        Errors:
            UnknownVersionError: nothing names it.
        """
        if version in self.named:
            return self.named[version]
        if self.template is None:
            raise UnknownVersionError(f"no checkpoint is named for version {version}")
        return self.template.replace("{version}", version)

    def in_order(self, seen: Iterable[str]) -> list[str]:
        """All versions in the order of the run: the named ones as given, then those of the
        template by number; behind each those with an adapter over it.
        """
        over: dict[str, set[str]] = {}
        for weights in seen:
            version, _, adapter = weights.partition(WITH)
            over.setdefault(version, set()).update({adapter} - {""})
        others = sorted({v for v in over if v not in self.named}, key=_natural)
        return [
            weights
            for version in (*self.named, *others)
            for weights in (
                version,
                *(f"{version}{WITH}{a}" for a in sorted(over.get(version, ()), key=_natural)),
            )
        ]


def neighbours(order: Sequence[str], version: str) -> list[str]:
    """The versions just before and just after one."""
    position = order.index(version)
    return [order[i] for i in (position - 1, position + 1) if 0 <= i < len(order)]


def _natural(version: str) -> list[tuple[int, int, str]]:
    """A key by which `step_9` comes before `step_10`, whatever letters and digits there are."""
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    found = []
    for part in parts:
        # By length and letters: numbers can have more digits than `int` takes.
        number = part.lstrip("0") if part[0] in _DIGITS else None
        found.append((1, 0, part) if number is None else (0, len(number), number))
    return found
