"""The environment that a worker gives to vLLM.

Three kinds: what must be so (`FORCED`), what is so unless the fleet says otherwise (`DEFAULTS`), and
what Kubernetes may have put there by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FORCED = {
    "VLLM_SERVER_DEV_MODE": "0",  # its control routes have no authentication
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",  # adapters come by the admin port
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0",  # a dead engine must take the container down
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",  # it would let pickles travel between processes
}
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
CPU_DEFAULTS = {
    # Without it the CPU platform starts a third process for the model (measured: 20.5 s instead of
    # 13 s to start, 2.5 GiB instead of 1.1 GiB). API server and engine core stay apart.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_DROPPED = (
    "PROMETHEUS_MULTIPROC_DIR",  # one process serves; its metrics live in memory
)


def prepared_environment(
    environment: Mapping[str, str],
    *,
    other_plugins: Iterable[str],
    cpu: bool,
    single_process: bool,
) -> tuple[dict[str, str], list[str]]:
    """The environment for vLLM, and a sentence for everything in it that was overruled.

    Args:
        environment: As it was found.
        other_plugins: Names of vLLM's other installed plugins, which load without being named.
        cpu: The engine runs on CPUs.
        single_process: The model runs in one process (no tensor or pipeline parallelism).
    """
    prepared = dict(environment)
    notes: list[str] = []
    notes += [
        f"{name} is set to {value}: the worker owns it"
        for name, value in FORCED.items()
        if prepared.get(name, value) != value
    ]
    prepared |= FORCED
    for name in _DROPPED:
        if prepared.pop(name, None) is not None:
            notes.append(f"{name} is dropped: the worker owns it")
    for name in [n for n in prepared if n == "VLLM_PORT" and "://" in prepared[n]]:
        del prepared[name]
        notes.append(
            f"{name} is dropped: it is the link to a Service named vllm, which vLLM would take for"
            " its own setting (set enableServiceLinks: false)"
        )
    for name, value in DEFAULTS.items():
        prepared.setdefault(name, value)
    if cpu and single_process:
        for name, value in CPU_DEFAULTS.items():
            prepared.setdefault(name, value)
    prepared["VLLM_PLUGINS"] = _plugins(prepared.get("VLLM_PLUGINS"), other_plugins)
    return prepared, notes


def _plugins(named: str | None, others: Iterable[str]) -> str:
    """The list of plugins that may load: ours, and what would load without a list."""
    names = others if named is None else named.split(",")
    return ",".join(dict.fromkeys(["rlfleet", *(name for name in names if name)]))
