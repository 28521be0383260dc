"""Where the checkpoint of a version is, and which versions are next to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class UnknownVersionError(Exception):
    """No checkpoint was named for a version that a reply carries."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Named checkpoints and a template for the others.

    Fields:
        named: version → directory, in the order of the run.
        template: directory with `{version}` in it, or None.
    """

    named: dict[str, str]
    template: str | None = None

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Checkpoints:
        """From `VERSION=DIR` and `DIR/with/{version}`.

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
        return cls(named, templates[0] if templates else None)

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
        template by number.
        """
        others = sorted({v for v in seen if v not in self.named}, key=_natural)
        return [*self.named, *others]


def neighbours(order: Sequence[str], version: str) -> list[str]:
    """The versions just before and just after one."""
    position = order.index(version)
    return [order[i] for i in (position - 1, position + 1) if 0 <= i < len(order)]


def _natural(version: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", version)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]
