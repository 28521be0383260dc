"""Log-probabilities by teacher forcing with transformers in float32, the reference of the audit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fleet_worker.lora.scale import scale_of

Tokens = Sequence[int]

_BATCH = 16

_CASTABLE = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The types between which workers cast, as safetensors names them."""


def log_probabilities(
    directory: str,
    pairs: Sequence[tuple[Tokens, Tokens]],
    *,
    device: str,
    adapter: str | None = None,
    model: str | None = None,
) -> list[list[float]]:
    """Return the log-probability of every completion token, given all tokens before it.

    Args:
        directory: A checkpoint. Only safetensors are read.
        pairs: (prompt, completion), both at least one token long.
        device: Device of torch.
        adapter: Directory of a plain LoRA adapter to add to the weights.
        model: Directory of the fleet's model. Workers have cast the tensors to its types.

    Returns:
        One list per pair, with one number per completion token, in nats.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy
    from transformers.utils import logging  # noqa: PLC0415 - heavy

    logging.disable_progress_bar()
    with _as_served(Path(directory), model) as served:
        computed = AutoModelForCausalLM.from_pretrained(
            served, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    if adapter is not None:
        _add(computed, Path(adapter))
    computed = computed.to(device).eval()
    results: list[list[float]] = [[] for _ in pairs]
    # Batches of similar lengths, because padding costs as much as tokens.
    by_length = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    with torch.inference_mode():
        for first in range(0, len(by_length), _BATCH):
            batch = by_length[first : first + _BATCH]
            for i, values in zip(batch, _batch(computed, [pairs[i] for i in batch]), strict=True):
                results[i] = values
    return results


@contextmanager
def _as_served(directory: Path, model: str | None) -> Iterator[Path]:
    """Give a checkpoint with the types of a model's tensors: the directory, or a copy of it for a while."""
    types = _types_in(Path(model)) if model is not None else {}
    if all(types.get(name, dtype) == dtype for name, dtype in _types_in(directory).items()):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="rlfleet-audit-") as folder:
        for file in directory.iterdir():
            if file.suffix != ".safetensors":
                (Path(folder) / file.name).symlink_to(file.resolve())
        for file in _files_in(directory):
            _write_cast(file, Path(folder) / file.name, types)
        yield Path(folder)


def _write_cast(file: Path, target: Path, types: Mapping[str, str]) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - heavy

    tensors = load_file(file)
    for name, tensor in tensors.items():
        served = _CASTABLE.get(types.get(name, ""))
        if served is not None and tensor.dtype in _CASTABLE.values():
            tensors[name] = tensor.to(served)
    save_file(tensors, target, metadata={"format": "pt"})


def _types_in(directory: Path) -> dict[str, str]:
    """Return the type of each tensor of a checkpoint, as safetensors names it."""
    from safetensors import safe_open  # noqa: PLC0415 - heavy

    found: dict[str, str] = {}
    for file in _files_in(directory):
        with safe_open(file, framework="pt") as tensors:
            found |= {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    return found


def _files_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("[!.]*.safetensors"))


def _add(model: torch.nn.Module, adapter: Path) -> None:
    """Add an adapter in PEFT's format to the weights of its modules."""
    from safetensors.torch import load_file  # noqa: PLC0415 - heavy

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, down in tensors.items():
        module, found, _ = name.removeprefix("base_model.model.").partition(".lora_A.")
        if found:
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            weight = model.get_parameter(f"{module}.weight")
            with torch.no_grad():
                weight += scale_of(config, module) * (up.float() @ down.float())


def _batch(model: torch.nn.Module, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[list[float]]:
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.zeros((len(pairs), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(pairs):
        # Padding is on the right, where a causal model does not see it.
        length = len(prompt) + len(completion)
        ids[row, :length] = torch.tensor([*prompt, *completion])
        mask[row, :length] = 1
    device = next(model.parameters()).device
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
    values = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    chosen = values.gather(-1, ids[:, 1:, None].to(device))[..., 0].cpu()
    return [
        chosen[row, len(prompt) - 1 : len(prompt) + len(completion) - 1].tolist()
        for row, (prompt, completion) in enumerate(pairs)
    ]
