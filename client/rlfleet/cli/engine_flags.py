"""The flags of `spec.engine.args` that vLLM knows, and its refusals of others: pure.

The names are those of one release of vLLM (`engine_flags.json`, from its own parser). Another release
or a plugin may know others, so an unknown name is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import fail, ok, warn
from rlfleet.cli.pods import worker_status
from rlfleet.ports import Json
from rlfleet.words import bounded, plural
from rlfleet_resources.names import LABEL_FLEET

_REFUSAL = re.compile(
    r"error: ((?:unrecognized arguments: |argument |ambiguous option: |the following arguments ).+)"
)
"""The last line of Python's argparse, which is vLLM's parser."""
_USAGE = 2
"""Exit code of argparse."""


@dataclass(frozen=True, slots=True)
class Known:
    """The flags of a release of vLLM."""

    version: str
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A flag that vLLM does not know, or an abbreviation of several. `near`: what may be meant."""

    flag: str
    near: tuple[str, ...]

    def remedy(self) -> str:
        """The flags that may be meant, and when to ignore the finding."""
        either = f"use {' or '.join(self.near)}" if self.near else "correct spec.engine.args"
        return f"{either}, unless the image's vLLM or a plugin of it knows {self.flag}"


@cache
def known() -> Known:
    """The flags of the release that this client knows."""
    found = json.loads(files("rlfleet.cli").joinpath("engine_flags.json").read_text("utf-8"))
    return Known(found["vllm"], frozenset(found["flags"]))


def arguments_of(fleet: Json) -> list[str]:
    """The `spec.engine.args` of a fleet, as far as they are text. A file may hold anything."""
    spec: Any = fleet.get("spec")
    engine = spec.get("engine") if isinstance(spec, dict) else None
    found = engine.get("args") if isinstance(engine, dict) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def unknown_flags(arguments: Sequence[str]) -> list[Unknown]:
    """The flags of a command line that vLLM does not know.

    Source: `FlexibleArgumentParser` of vLLM. In names `_` equals `-`, `--x.y` sets a field of `--x`,
    `--x+` adds to `--x`, and unambiguous abbreviations are valid.
    """
    found = (_unknown(one) for one in arguments if re.match(r"-[^\d.]", one))
    return list(dict.fromkeys(one for one in found if one is not None))


def _unknown(argument: str) -> Unknown | None:
    name = argument.partition("=")[0].partition(".")[0].rstrip("+")
    shown, all_flags = bounded(name, 60), known().flags
    if not name.startswith("--"):
        # A value may follow a flag of one letter at once: -n2. vLLM's parser replaces -O before it looks.
        if name in all_flags or name[:2] in {*all_flags, "-O"}:
            return None
        return Unknown(shown, ())
    name = name.replace("_", "-")
    if name in all_flags:
        return None
    longer = sorted(flag for flag in all_flags if flag.startswith(name))
    if len(longer) == 1:
        return None
    near = longer[:3] or get_close_matches(name, sorted(all_flags), n=2, cutoff=0.85)
    return Unknown(shown, tuple(near))


def flag_checks(fleets: Sequence[Json]) -> Iterator[Check]:
    """The names of the flags of fleets."""
    for fleet in fleets:
        name, arguments = fleet["metadata"]["name"], arguments_of(fleet)
        unknown = unknown_flags(arguments)
        for one in unknown:
            message = f"vLLM {known().version} has no flag {one.flag}, which fleet {name} names"
            yield warn("engine", message, one.remedy())
        if arguments and not unknown:
            yield ok("engine", f"vLLM {known().version} knows the flags of fleet {name}")


def refusals(pods: Sequence[Json]) -> dict[str, str]:
    """The arguments that vLLM has refused, by the name of the worker whose last start it ended."""
    found = {pod["metadata"]["name"]: _refusal(pod) for pod in pods}
    return {pod: line for pod, line in found.items() if line}


def _refusal(pod: Json) -> str:
    worker = worker_status(pod)
    for when in ("state", "lastState"):
        ended = (worker.get(when) or {}).get("terminated") or {}
        if ended.get("exitCode") == _USAGE and not worker.get("ready"):
            lines = str(ended.get("message") or "").splitlines()
            said = (_REFUSAL.search(line) for line in reversed(lines))
            return next((bounded(match[1]) for match in said if match), "")
    return ""


def refusal_checks(pods: Sequence[Json]) -> Iterator[Check]:
    """Workers that end because vLLM refuses an argument, one check for each fleet and argument."""
    fleets = {
        pod["metadata"]["name"]: (pod["metadata"].get("labels") or {}).get(LABEL_FLEET, "")
        for pod in pods
    }
    alike: dict[tuple[str, str], list[str]] = {}
    for pod, line in refusals(pods).items():
        alike.setdefault((fleets[pod], line), []).append(pod)
    for (fleet, line), names in alike.items():
        more = f" and {plural(len(names) - 1, 'more worker')}" if len(names) > 1 else ""
        message = f"vLLM refuses to start {names[0]}{more} of fleet {fleet}: {line}"
        yield fail("engine", message, _correction(line))


def _correction(line: str) -> str:
    _, mark, rest = line.partition("unrecognized arguments: ")
    unknown = unknown_flags(rest.split()) if mark else []
    near = [flag for one in unknown for flag in one.near]
    meant = f"; {' or '.join(near)} may be meant" if near else ""
    return f"correct spec.engine.args of the fleet{meant}"
