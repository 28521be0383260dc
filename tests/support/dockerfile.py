"""Reads our Dockerfile, as far as its own words go: stages, and their instructions in order."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass
class Stage:
    """One `FROM`, and what follows it.

    Fields:
        instructions: word and rest, with continued lines joined and comments left out.
    """

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        """The arguments of each instruction with this keyword."""
        return [rest for found, rest in self.instructions if found == word]

    def last(self, word: str) -> str:
        """The arguments of the last instruction with this keyword; empty without one."""
        return (self.all(word) or [""])[-1]

    def environment(self) -> dict[str, str]:
        """All of ENV."""
        pairs = (pair for rest in self.all("ENV") for pair in shlex.split(rest))
        return dict(pair.split("=", 1) for pair in pairs)

    def copies(self) -> list[tuple[list[str], str]]:
        """Sources and destination of every COPY from the build context."""
        found = [shlex.split(rest) for rest in self.all("COPY")]
        return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--from")]


def read(dockerfile: Path) -> dict[str, Stage]:
    """Stages by name, with the defaults of the arguments before the first one."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, Stage] = {}
    defaults: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = Stage(defaults.get(base.strip("${}"), base))
        elif word == "ARG" and not stages:
            name, _, default = rest.partition("=")
            defaults[name] = default
        else:
            list(stages.values())[-1].instructions.append((word, rest.strip()))
    return stages


def is_ignored(ignore_file: Path, path: str) -> bool:
    """Whether a path stays out of the build context: the last pattern that fits decides."""
    ignored = False
    for line in ignore_file.read_text().splitlines():
        pattern = line.removeprefix("!")
        tops = ["/".join(path.split("/")[: n + 1]) for n in range(len(path.split("/")))]
        if any(fnmatch(top, p) for top in tops for p in (pattern, pattern.removeprefix("**/"))):
            ignored = not line.startswith("!")
    return ignored
