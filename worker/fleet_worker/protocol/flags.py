"""Flags of `vllm serve` that rlfleet owns, and the refusal of arguments that name one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class OwnedFlag(NamedTuple):
    """A flag of `vllm serve` that a fleet's `engine.args` may not hold.

    Fields:
        flag: long name. The `--no-` form is owned too.
        reason: text for the refusal.
        short: another name of the same flag.
        family: whether all flags that begin with this name, or with the short one, are owned.
    """

    flag: str
    reason: str
    short: str = ""
    family: bool = False


OWNED_ENGINE_FLAGS = (
    OwnedFlag("--model", "spec.model.source chooses the model"),
    OwnedFlag("--revision", "spec.model.source chooses the revision"),
    OwnedFlag("--code-revision", "spec.model.source chooses the revision"),
    OwnedFlag("--served-model-name", "spec.model.name is the served name, stable over versions"),
    OwnedFlag("--load-format", "weights are safetensors that the worker has checked"),
    OwnedFlag("--host", "the worker binds the pod's address"),
    OwnedFlag("--port", "spec.serving.port chooses the port"),
    OwnedFlag("--uds", "the worker listens on spec.serving.port"),
    OwnedFlag("--root-path", "the latch and the probes know the paths as vLLM serves them"),
    OwnedFlag("--config", "a file could set flags that the worker owns"),
    OwnedFlag("--middleware", "the latch is the outermost middleware"),
    OwnedFlag("--worker-cls", "the worker extension needs vLLM's own worker class"),
    OwnedFlag("--worker-extension-cls", "checks, loads and probes run in the worker's extension"),
    OwnedFlag("--enable-scale-out", "the worker turns the token route on"),
    OwnedFlag("--tokens-only", "it would open an abort route without authentication"),
    OwnedFlag("--api-server-count", "one process must see all requests of a worker", "-asc"),
    OwnedFlag("--headless", "the worker is the API server of its engine"),
    OwnedFlag("--grpc", "only the HTTP routes carry weight versions", family=True),
    OwnedFlag(
        "--data-parallel", "a worker is one engine; raise spec.replicas instead", "-dp", family=True
    ),
    OwnedFlag("--nnodes", "a worker is one pod", "-n"),
    OwnedFlag("--node-rank", "a worker is one pod", "-r"),
    OwnedFlag("--enable-elastic-ep", "the operator must know the size of the engine"),
    OwnedFlag("--enable-fault-tolerance", "it opens control routes on the public port"),
    OwnedFlag("--profiler-config", "it opens control routes on the public port"),
    OwnedFlag("--enable-tokenizer-info-endpoint", "the public port serves no such route"),
    OwnedFlag("--shutdown-timeout", "the worker drains by itself"),
    OwnedFlag("--weight-transfer-config", "--weight-transfer-backend of the worker sets it"),
    OwnedFlag("--kv-transfer-config", "requests could read keys and values of other weights"),
    OwnedFlag(
        "--kv-offloading-backend",
        "only vLLM's own offloading drops its keys and values at a swap; set --kv-offloading-size"
        " only",
    ),
    OwnedFlag(
        "--ec-transfer-config",
        "an encoder cache outside of the engine survives a swap; remove the flag",
    ),
    OwnedFlag(
        "--ec-manager-config",
        "an encoder cache other than vLLM's own may survive a swap; remove the flag",
    ),
    OwnedFlag(
        "--enable-eplb",
        "a load puts experts back to their first places, where the rebalanced router does not look;"
        " remove the flag",
    ),
    OwnedFlag(
        "--offload",
        "vLLM cannot load into offloaded layers, which keep old weights; remove the flag",
        family=True,
    ),
    OwnedFlag(
        "--cpu-offload",
        "vLLM cannot load into offloaded layers, which keep old weights; remove the flag",
        family=True,
    ),
    OwnedFlag("--enable-lora", "spec.adapters.max turns adapters on"),
    OwnedFlag("--max-loras", "spec.adapters.max sets the number of adapters"),
    OwnedFlag("--max-cpu-loras", "spec.adapters.max sets the number of adapters"),
    OwnedFlag("--max-lora-rank", "spec.adapters.maxRank sets the largest rank"),
    OwnedFlag("--lora-modules", "adapters have versions, which the worker checks and labels"),
    OwnedFlag("--default-mm-loras", "a request names its adapter, which has a version"),
    OwnedFlag("--logging-config", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-config-file", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-level", "--log-format and --log-level of the worker choose it"),
)
"""The flags of vLLM that rlfleet owns, with the reason that a refusal names.

Compared after `_` became `-`. As in vLLM's own parser, an unambiguous prefix counts as the name.
"""


def refused_flags(arguments: Sequence[str]) -> list[str]:
    """Return one sentence for every argument that names an owned flag; empty if there is no such flag.

    Args:
        arguments: `--flag value`, `--flag=value`, `-f value` in any mixture, as on a command line.

    Source: `FlexibleArgumentParser` of vLLM. `_` equals `-` in names, `--x.y` sets a field of
    `--x`, and abbreviations are valid.
    """
    refused = []
    for argument in arguments:
        if not argument.startswith("-") or argument == "-":
            continue
        owner = _owner(argument)
        if owner is not None:
            refused.append(f"{argument.partition('=')[0]} is not allowed: {owner.reason}")
    return refused


def _owner(argument: str) -> OwnedFlag | None:
    if not argument.startswith("--"):
        return next((flag for flag in OWNED_ENGINE_FLAGS if _is_short(argument, flag)), None)
    name = argument.partition("=")[0].partition(".")[0].rstrip("+").replace("_", "-")
    if name == "--":
        return OwnedFlag("--", "it ends the flags, and arguments after it are not allowed")
    for flag in OWNED_ENGINE_FLAGS:
        for owned in (flag.flag, flag.flag.replace("--", "--no-", 1)):
            if name == owned or (flag.family and name.startswith(owned)):
                return flag
            if owned.startswith(name):  # the parser accepts unambiguous prefixes
                return flag
    return None


def _is_short(argument: str, flag: OwnedFlag) -> bool:
    if not flag.short:
        return False
    name = argument.partition("=")[0]
    if flag.family:
        return name.startswith(flag.short)
    if len(flag.short) == 2:  # a value may follow a single letter directly: -n2
        with_value = argument[:2] == flag.short and argument[2:].isdigit()
        return name == flag.short or with_value
    return name == flag.short or (len(name) > 2 and flag.short.startswith(name))
