"""The checkpoint of a version, and the versions next to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from fleet_worker.audit.records import AT, OF, WITH

_DIGITS = "0123456789"
_LABEL = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?:({_LABEL})/)?({_LABEL})(?:@([0-9a-f]{{12}}))?")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, and the adapter over it if there is one."""

    directory: str
    adapter: str | None = None


DigestIn = Callable[..., str]
"""(directory, is_adapter=whether it is read as an adapter) → digest of its files."""


class UnknownVersionError(Exception):
    """The command line names no checkpoint for a version in a reply."""


class WrongBytesError(Exception):
    """The directory named for some weights has others."""


@dataclass(frozen=True, slots=True)
class Name:
    """Name of a checkpoint or an adapter: `[run/]version[@digest]`."""

    run_id: str | None
    version: str
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the name, or None for other text."""
        found = _NAME.fullmatch(text)
        return None if found is None else cls(found[1], found[2], found[3])

    def __str__(self) -> str:
        run = f"{self.run_id}{OF}" if self.run_id is not None else ""
        return run + self.version + (f"{AT}{self.digest}" if self.digest is not None else "")

    @property
    def shorter(self) -> tuple[str, ...]:
        """The names that it may have on a command line, the most exact one first."""
        runs, digests = dict.fromkeys((self.run_id, None)), dict.fromkeys((self.digest, None))
        return tuple(str(Name(run, self.version, digest)) for run in runs for digest in digests)


def _named(text: str) -> Name:
    return Name.parse(text) or Name(None, text, None)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Named checkpoints and a template for the others.

    Fields:
        named: name → directory, in the order of the run.
        template: path with `{version}` and optionally `{run}`, or None.
        adapters: the same for versions of adapters. None without adapters.
    """

    named: dict[str, str]
    template: str | None = None
    adapters: Checkpoints | None = None

    @classmethod
    def parse(cls, arguments: Sequence[str], adapters: Sequence[str] = ()) -> Checkpoints:
        """Parse `[RUN/]VERSION[@DIGEST]=DIR` and `DIR/with/{version}`, and the same of adapters.

        Errors:
            ValueError: an argument has another form, or there are two templates.
        """
        named: dict[str, str] = {}
        templates = []
        for argument in arguments:
            version, equals, directory = argument.partition("=")
            if equals and directory and Name.parse(version) and "{version}" not in directory:
                named[version] = directory
            elif "{version}" in argument:
                templates.append(argument)
            else:
                raise ValueError(
                    f"{argument!r} is neither VERSION=DIR (or RUN/VERSION@DIGEST=DIR)"
                    " nor a path with {version}"
                )
        if len(templates) > 1:
            raise ValueError(f"more than one template is given: {', '.join(templates)}")
        over = cls.parse(adapters) if adapters else None
        return cls(named, templates[0] if templates else None, over)

    def source_of(self, weights: str) -> Source:
        """Return the checkpoint and adapter of weights, named as in `SpanRecord.weights`.

        Errors:
            UnknownVersionError: no argument names them.
        """
        base, _, adapter = weights.partition(WITH)
        directory = self.directory_of(base)
        if not adapter:
            return Source(directory)
        if self.adapters is None:
            raise UnknownVersionError(f"a reply names the adapter {adapter}: set --adapters")
        return Source(directory, self.adapters.directory_of(adapter))

    def directory_of(self, weights: str) -> str:
        """Return the directory of a checkpoint: the most exact name, else the template.

        Errors:
            UnknownVersionError: no argument names it.
        """
        name = _named(weights)
        for shorter in name.shorter:
            if shorter in self.named:
                return self.named[shorter]
        if self.template is None:
            raise UnknownVersionError(
                f"no checkpoint is given for version {weights}: add {weights}=DIR"
            )
        if "{run}" in self.template and name.run_id is None:
            raise UnknownVersionError(
                f"the template has {{run}}, but version {weights} has no run: add {weights}=DIR"
            )
        return self.template.replace("{version}", name.version).replace("{run}", name.run_id or "")

    def check_bytes(self, seen: Iterable[str], digest_in: DigestIn) -> None:
        """Check that the directories have the digests that replies name.

        Args:
            seen: Weights, named as in `SpanRecord.weights`.
            digest_in: Computes the digest of a directory.

        Errors:
            UnknownVersionError: no argument names some of them.
            WrongBytesError: a directory has another digest.
        """
        known: dict[tuple[str, bool], str] = {}
        for weights in sorted(set(seen)):
            source, (base, _, adapter) = self.source_of(weights), weights.partition(WITH)
            parts = ((base, source.directory, False), (adapter, source.adapter, True))
            for part, directory, is_adapter in parts:
                digest = _named(part).digest
                if digest is None or directory is None:
                    continue
                key = directory, is_adapter
                if key not in known:
                    known[key] = digest_in(directory, is_adapter=is_adapter).rpartition(":")[2]
                if (found := known[key][: len(digest)]) != digest:
                    raise WrongBytesError(
                        f"{directory} has weights with digest {found}, but replies name"
                        f" {part}; give the directory of these weights: {part}=DIR"
                    )

    def in_order(self, seen: Iterable[str]) -> list[str]:
        """Return all weights in the order of the run.

        The named ones come first, in the given order, and then those of the template by number. Each
        is followed by its combinations with adapters.
        """
        over: dict[str, set[str]] = {}
        for weights in seen:
            base, _, adapter = weights.partition(WITH)
            over.setdefault(base, set()).update({adapter} - {""})
        by_name: dict[str, list[str]] = {name: [] for name in self.named}
        others: list[str] = []
        for base in sorted(over, key=_natural):
            given = next((n for n in _named(base).shorter if n in self.named), None)
            (others if given is None else by_name[given]).append(base)
        # Named versions that no reply has stay in, because their neighbours are compared with them.
        bases = [base for name, seen_as in by_name.items() for base in seen_as or [name]]
        return [
            weights
            for base in (*bases, *others)
            for weights in (
                base,
                *(f"{base}{WITH}{a}" for a in sorted(over.get(base, ()), key=_natural)),
            )
        ]


def neighbours(order: Sequence[str], version: str) -> list[str]:
    """Return the versions just before and just after a version."""
    position = order.index(version)
    return [order[i] for i in (position - 1, position + 1) if 0 <= i < len(order)]


def _natural(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key with `step_9` before `step_10`, for any letters and digits."""
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    found = []
    for part in parts:
        # By length and digits: a number may have more digits than `int` accepts.
        number = part.lstrip("0") if part[0] in _DIGITS else None
        found.append((1, 0, part) if number is None else (0, len(number), number))
    return found
