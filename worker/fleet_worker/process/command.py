"""The command line and the environment of vLLM.

The flags that rlfleet owns come first, then those of the fleet. `FORCED` variables cannot be changed.
`DEFAULTS` apply unless the fleet sets others. Variables that Kubernetes may have added by accident are
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet_worker.engine.start_names import LOAD_FORMAT

EXTENSION = "fleet_worker.engine.extension.WorkerExtension"
GATE = "fleet_worker.gateway.gate.Gate"


@dataclass(frozen=True, slots=True)
class Public:
    """The public port.

    Fields:
        name: served model name.
    """

    host: str
    port: int
    name: str


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Room for LoRA adapters.

    Fields:
        slots: largest number of adapter versions in the engine. 0 turns adapters off.
        max_rank: the largest rank that fits.
        spare: further slots that always stay empty. CPUs need one: for tokens without an adapter
            their kernels add the slot with index -1, which is the last one
            (`lora.ops.torch_ops` of vLLM). An empty slot is all zero.
    """

    slots: int = 0
    max_rank: int = 16
    spare: int = 0


def engine_arguments(
    *,
    public: Public,
    directory: str,
    log_format: str,
    log_level: str,
    adapters: AdapterRoom,
    transfer_backend: str | None,
    extra: Sequence[str],
) -> list[str]:
    """Return the arguments for `vllm.entrypoints.openai.api_server`.

    Args:
        public: The public port.
        directory: Directory with the weights to start on, and the model's tokenizer, configuration and
            generation config, which hold for all versions unless the fleet names others.
        log_format: Format of vLLM's own log lines, `json` or `text`.
        log_level: Minimum level of vLLM's own log lines.
        adapters: Room for LoRA adapters.
        transfer_backend: vLLM's weight transfer engine, if weights may come over a collective.
        extra: The fleet's arguments, already checked.
    """
    own = [
        f"--model={directory}",
        f"--load-format={LOAD_FORMAT}",
        f"--served-model-name={public.name}",
        f"--host={public.host}",
        f"--port={public.port}",
        f"--worker-extension-cls={EXTENSION}",
        f"--middleware={GATE}",
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        f"--logging-config.formatter={log_format}",
        f"--log-level={log_level.upper()}",
        f"--uvicorn-log-level={'info' if log_level.lower() == 'debug' else 'warning'}",
    ]
    if log_format == "json":
        own.append("--no-use-tqdm-on-load")  # progress bars are not JSON
    if transfer_backend is not None:
        own.append(f"--weight-transfer-config.backend={transfer_backend}")
    if adapters.slots:
        # The engine fills the first free slot, so that the last ones stay empty.
        slots = adapters.slots + adapters.spare
        own += [
            "--enable-lora",
            f"--max-loras={slots}",
            # As many as there are slots, so that the engine never evicts an adapter.
            f"--max-cpu-loras={slots}",
            f"--max-lora-rank={adapters.max_rank}",
        ]
    return [*own, *extra]


def is_parallel(extra: Sequence[str]) -> bool:
    """Return whether the fleet's arguments spread the model over several processes."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size")
    for position, argument in enumerate(extra):
        name, _, value = argument.replace("_", "-").partition("=")
        shortened = name.startswith("--") and any(each.startswith(name) for each in names)
        if shortened or name in {"-tp", "-pp"}:
            value = value or "".join(extra[position + 1 : position + 2])
            if value.isdigit() and int(value) > 1:
                return True
    return False


FORCED = {
    "VLLM_SERVER_DEV_MODE": "0",  # its control routes have no authentication
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",  # adapters come over the admin port
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0",  # a dead engine must end the container
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",  # 1 would send pickles between processes
}
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # torch and vLLM ask for the name of the user. Images need not know the user ID of a pod, and
    # then the question ends the engine.
    "USER": "rlfleet",
}
CPU_DEFAULTS = {
    # With 1 the CPU platform starts a third process for the model (measured: 20.5 s instead of 13 s
    # to start, 2.5 GiB instead of 1.1 GiB). API server and engine core stay two processes.
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
    """Return the environment for vLLM, and one sentence for each variable that was overruled.

    Args:
        environment: The worker's own environment.
        other_plugins: Names of vLLM's other installed plugins, which load by default.
        cpu: Whether the engine runs on CPUs.
        single_process: Whether the model runs in one process (no tensor or pipeline parallelism).
    """
    prepared = dict(environment)
    notes: list[str] = []
    notes += [
        f"{name} is set to {value}: the worker owns this variable"
        for name, value in FORCED.items()
        if prepared.get(name, value) != value
    ]
    prepared |= FORCED
    for name in _DROPPED:
        if prepared.pop(name, None) is not None:
            notes.append(f"{name} is removed: the worker owns this variable")
    for name in [n for n in prepared if n == "VLLM_PORT" and "://" in prepared[n]]:
        del prepared[name]
        notes.append(
            f"{name} is removed: it comes from a Service named vllm, and vLLM would read it as its"
            " own setting (set enableServiceLinks: false)"
        )
    for name, value in DEFAULTS.items():
        prepared.setdefault(name, value)
    if cpu and single_process:
        for name, value in CPU_DEFAULTS.items():
            prepared.setdefault(name, value)
    prepared["VLLM_PLUGINS"] = _plugins(prepared.get("VLLM_PLUGINS"), other_plugins)
    return prepared, notes


def _plugins(named: str | None, others: Iterable[str]) -> str:
    """Return the plugins that may load: ours, and those that would load without a list."""
    names = others if named is None else named.split(",")
    return ",".join(dict.fromkeys(["rlfleet", *(name for name in names if name)]))
