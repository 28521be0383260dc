"""Write tiny real checkpoints: a Qwen3 of about 300 KB with random weights and a chat tokenizer.

    python tools/checkpoints.py DIR --seed N [--hidden 64] [--layers 2] [--sharded | --adapter-rank N]

For tests, the demo's trainer and the provenance audit. Every seed is another policy. Measured, the
log-probability of a sampled token under another seed is off by 4 in the mean, so that the audit can tell
policies apart. Everything is
made offline; the same seed and shape give the same bytes.

A trainer loop imports `write_checkpoint` and calls it once a step. The first call of a process
imports torch and transformers (about 3 s). Each further call takes about 2 ms.

Needs the worker's environment (torch, transformers, safetensors, tokenizers).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The text that the tokenizer's merges are learned from. Any text works if it stays the same. The
# syllables fill the vocabulary: every id of the model must decode to a text.
SYLLABLES = " ".join(a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrs")
CORPUS = (
    SYLLABLES,
    SYLLABLES,
    "the fleet loads new weights while requests are held and every token says which weights made it",
    "system user assistant: one two three four five six seven eight nine ten",
    "a trainer writes a checkpoint, the operator pauses the workers, the workers load and go on",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model; the default is what tests and the demo use."""

    hidden: int = 64
    layers: int = 2
    max_positions: int = 4096


def write_checkpoint(
    directory: str | os.PathLike[str],
    *,
    seed: int,
    shape: Shape | None = None,
    sharded: bool = False,
) -> Path:
    """Write one complete checkpoint and return its directory.

    The files are written next to the target and renamed into place, readable for all users, so that
    a reader sees either nothing or all of it. An existing directory is replaced.

    Args:
        directory: Target; its parent is made if need be.
        seed: Chooses the weights.
        shape: Size of the model.
        sharded: Two weight files with an index instead of one file.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Below the target's parent, because a rename works within one file system only.
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        shape = shape or Shape()
        for name, content in _companions(shape).items():
            (staging / name).write_bytes(content)
        _write_weights(staging, _weights(shape, seed), sharded=sharded)
        for file in staging.iterdir():
            file.chmod(0o644)  # safetensors writes 0600, which another user's worker cannot read
        staging.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def write_adapter(directory: Path, *, seed: int, shape: Shape, rank: int) -> Path:
    """Write a LoRA adapter for the model of a shape as PEFT does, and return its directory."""
    import torch  # noqa: PLC0415 - heavy
    from safetensors.torch import save_file  # noqa: PLC0415 - heavy

    sizes = {"q_proj": (128, shape.hidden), "o_proj": (shape.hidden, 128)}  # outputs and inputs
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for layer in range(shape.layers):
        for name, (outputs, inputs) in sizes.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            first = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            second = torch.randn(outputs, rank, generator=generator) / rank**0.5
            tensors |= {f"{module}.lora_A.weight": first, f"{module}.lora_B.weight": second}
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    directory.mkdir(parents=True)
    content = json.dumps({**config, "target_modules": sorted(sizes)})
    (directory / "adapter_config.json").write_text(content)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


@functools.cache
def _model(shape: Shape) -> Any:
    """One model of a shape, used as the mould of all its checkpoints."""
    import torch  # noqa: PLC0415 - heavy, and `--help` must be fast
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM's attention for CPUs has a kernel for
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def _weights(shape: Shape, seed: int) -> dict[str, Any]:
    """Random tensors, large enough that seeds disagree and small enough that nothing overflows."""
    import torch  # noqa: PLC0415 - heavy

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in sorted(_model(shape).state_dict().items()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:  # norms scale what passes: around one
            values = 1.0 + 0.2 * noise
        elif "embed_tokens" in name:
            values = noise
        elif "lm_head" in name:  # logits of standard deviation 2: neither flat nor certain
            values = noise * (2.0 / shape.hidden**0.5)
        else:
            values = noise * (1.2 / parameter.shape[1] ** 0.5)
        weights[name] = values.to(torch.bfloat16).contiguous()
    return weights


def _write_weights(directory: Path, weights: dict[str, Any], *, sharded: bool) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415 - heavy

    metadata = {"format": "pt"}
    if not sharded:
        save_file(weights, directory / "model.safetensors", metadata=metadata)
        return
    names = sorted(weights)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in half}, directory / file, metadata=metadata)
        weight_map |= dict.fromkeys(half, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


@functools.cache
def _companions(shape: Shape) -> dict[str, bytes]:
    """All files except the weights (config, generation config, tokenizer), made once a process."""
    with tempfile.TemporaryDirectory() as folder:
        model = _model(shape)
        model.config.architectures = ["Qwen3ForCausalLM"]
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}


@functools.cache
def _tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - heavy

    tokenizers = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",  # noqa: S106 - a token of the vocabulary
        eos_token="<|im_end|>",  # noqa: S106 - a token of the vocabulary
        pad_token="<|endoftext|>",  # noqa: S106 - a token of the vocabulary
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
    )


def main() -> None:
    """Read the command line and write one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    default = Shape()
    parser.add_argument("--hidden", type=int, default=default.hidden)
    parser.add_argument("--layers", type=int, default=default.layers)
    parser.add_argument("--sharded", action="store_true", help="two weight files and an index")
    parser.add_argument(
        "--adapter-rank", type=int, help="a LoRA adapter of such a model, and no model"
    )
    arguments = parser.parse_args()
    shape = Shape(hidden=arguments.hidden, layers=arguments.layers)
    if rank := arguments.adapter_rank:
        print(write_adapter(arguments.directory, seed=arguments.seed, shape=shape, rank=rank))
        return
    print(
        write_checkpoint(
            arguments.directory, seed=arguments.seed, shape=shape, sharded=arguments.sharded
        )
    )


if __name__ == "__main__":
    main()
