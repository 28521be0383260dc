"""The command line that vLLM gets: the flags that rlfleet owns, then what the fleet adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXTENSION = "fleet_worker.adapters.extension.WorkerExtension"
GATE = "fleet_worker.wire.public.gate.Gate"


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
        slots: how many versions of adapters may be in the engine; 0 turns adapters off.
        max_rank: the largest rank that fits.
        spare: slots that the engine has besides and that nobody gets. One is needed on CPUs: for
            tokens without an adapter the kernels there take the slot with index -1, the last one,
            and would add what it holds (`lora.ops.torch_ops`, vLLM 0.32; an empty one is all zero).
    """

    slots: int = 0
    max_rank: int = 16
    spare: int = 0


def engine_arguments(
    *,
    public: Public,
    weights: str,
    tokenizer: str,
    log_format: str,
    log_level: str,
    adapters: AdapterRoom,
    transfer_backend: str | None,
    extra: Sequence[str],
) -> list[str]:
    """Arguments for `vllm.entrypoints.openai.api_server`.

    Args:
        public: Where to serve.
        weights: Directory of the weights to start on.
        tokenizer: Directory of the tokenizer: the model's own, whatever version the weights are.
        log_format: Of vLLM's own lines, `json` or `text`.
        log_level: Of vLLM's own lines.
        adapters: Room for them.
        transfer_backend: vLLM's weight transfer engine, if weights may come over a collective.
        extra: The fleet's arguments, already checked.
    """
    own = [
        f"--model={weights}",
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
        own.append("--no-use-tqdm-on-load")  # its bars are no lines
    if transfer_backend is not None:
        own.append(f"--weight-transfer-config.backend={transfer_backend}")
    if adapters.slots:
        # The engine gives the first free slot, so that the last ones stay empty.
        slots = adapters.slots + adapters.spare
        own += [
            "--enable-lora",
            f"--max-loras={slots}",
            # No more than have a slot: the engine never has to choose which one to throw out.
            f"--max-cpu-loras={slots}",
            f"--max-lora-rank={adapters.max_rank}",
        ]
    if not any(argument.partition("=")[0] == "--tokenizer" for argument in extra):
        own.append(f"--tokenizer={tokenizer}")
    return [*own, *extra]


def is_parallel(extra: Sequence[str]) -> bool:
    """Whether the fleet's arguments spread the model over several processes."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size")
    for position, argument in enumerate(extra):
        name, _, value = argument.replace("_", "-").partition("=")
        shortened = name.startswith("--") and any(each.startswith(name) for each in names)
        if shortened or name in {"-tp", "-pp"}:
            value = value or "".join(extra[position + 1 : position + 2])
            if value.isdigit() and int(value) > 1:
                return True
    return False
