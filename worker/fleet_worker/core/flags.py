"""Which flags of `vllm serve` a fleet may pass, and which rlfleet owns."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_worker.protocol import OWNED_ENGINE_FLAGS, OwnedFlag


def refused_flags(arguments: Sequence[str]) -> list[str]:
    """One sentence for every argument that names an owned flag; empty if all may pass.

    Args:
        arguments: `--flag value`, `--flag=value`, `-f value` in any mixture, as on a command line.

    Source: `FlexibleArgumentParser`, vLLM 0.32: `_` and `-` are the same in names, `--x.y` sets a
    field of `--x`, abbreviations are taken.
    """
    refused = []
    for argument in arguments:
        if not argument.startswith("-") or argument == "-":
            continue
        owner = _owner(argument)
        if owner is not None:
            refused.append(f"{argument.partition('=')[0]} is rlfleet's: {owner.reason}")
    return refused


def _owner(argument: str) -> OwnedFlag | None:
    if not argument.startswith("--"):
        return next((flag for flag in OWNED_ENGINE_FLAGS if _is_short(argument, flag)), None)
    name = argument.partition("=")[0].partition(".")[0].rstrip("+").replace("_", "-")
    if name == "--":
        return OwnedFlag("--", "nothing may follow the end of the flags")
    for flag in OWNED_ENGINE_FLAGS:
        for owned in (flag.flag, flag.flag.replace("--", "--no-", 1)):
            if name == owned or (flag.family and name.startswith(owned)):
                return flag
            if owned.startswith(name):  # the parser takes unambiguous beginnings of names
                return flag
    return None


def _is_short(argument: str, flag: OwnedFlag) -> bool:
    if not flag.short:
        return False
    name = argument.partition("=")[0]
    if flag.family:
        return name.startswith(flag.short)
    if len(flag.short) == 2:  # a single letter takes its value glued on: -n2
        glued = argument[:2] == flag.short and argument[2:].isdigit()
        return name == flag.short or glued
    return name == flag.short or (len(name) > 2 and flag.short.startswith(name))
