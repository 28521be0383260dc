"""Flags of `vllm serve` that rlfleet owns."""

from __future__ import annotations

from typing import NamedTuple


class OwnedFlag(NamedTuple):
    """A flag of `vllm serve` that a fleet's `engine.args` may not hold.

    Fields:
        flag: its long name; its `--no-` form is owned with it.
        reason: why, ready for the refusal.
        short: other names of the same flag.
        family: every flag whose name begins like this one (or like its short name) is meant.
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
    OwnedFlag("--enable-elastic-ep", "it changes the engine's size behind the operator's back"),
    OwnedFlag("--enable-fault-tolerance", "it opens control routes on the public port"),
    OwnedFlag("--profiler-config", "it opens control routes on the public port"),
    OwnedFlag("--enable-tokenizer-info-endpoint", "the public port serves no such route"),
    OwnedFlag("--shutdown-timeout", "the worker drains by itself"),
    OwnedFlag("--weight-transfer-config", "--weight-transfer-backend of the worker sets it"),
    OwnedFlag("--kv-transfer-config", "keys and values of other weights could be read"),
    OwnedFlag(
        "--kv-offloading-backend",
        "only vLLM's own offloading drops its keys and values at a swap; --kv-offloading-size alone"
        " turns it on",
    ),
    OwnedFlag(
        "--ec-transfer-config",
        "an encoder cache outside of the engine survives a swap; serve without it",
    ),
    OwnedFlag(
        "--ec-manager-config",
        "an encoder cache of another make may survive a swap; serve with vLLM's own",
    ),
    OwnedFlag(
        "--enable-eplb",
        "a load puts experts where they were at the start, the rebalanced router looks for them"
        " elsewhere; serve without it",
    ),
    OwnedFlag("--enable-lora", "spec.adapters.max turns adapters on"),
    OwnedFlag("--max-loras", "spec.adapters.max chooses how many adapters there may be"),
    OwnedFlag("--max-cpu-loras", "spec.adapters.max chooses how many adapters there may be"),
    OwnedFlag("--max-lora-rank", "spec.adapters.maxRank chooses the largest rank"),
    OwnedFlag("--lora-modules", "adapters have versions, which the worker checks and labels"),
    OwnedFlag("--default-mm-loras", "a request names its adapter, which has a version"),
    OwnedFlag("--logging-config", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-config-file", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-level", "--log-format and --log-level of the worker choose it"),
)
"""What rlfleet owns among the flags of vLLM 0.32, with the reason that a refusal names.

Compared after `_` became `-`; an unambiguous beginning of a name counts as the name, as it does
for vLLM's own parser.
"""
