"""A worker for real clients: its public port wants a key, as behind a gateway."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import write_checkpoints
from tests.support.environments import ENGINE_ARGUMENTS
from tests.support.worker import WorkerProcess

KEY = "a-key-of-the-clients"
# Tokens that a renderer of Qwen's format needs; they replace other tokens.
QWEN_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


@dataclass(frozen=True)
class Served:
    """A worker, its checkpoints by version, and the tokenizer that clients load."""

    worker: WorkerProcess
    root: Path
    tokenizer: Path
    ran: list[str]

    def swap(self) -> str:
        """Bring other weights to the worker; returns their version."""
        number = len(self.ran) + 1
        version = f"step_{number}"
        source = self.root / "abc"[number % 3]  # never those of the last two
        self.worker.swap(version, source)
        self.ran.append(version)
        return version

    def score(self, prompt: list[int], completion: list[int]) -> list[float]:
        """Log-probabilities of a completion under the weights that are in the engine."""
        tokens = [*prompt, *completion]
        reply = self.worker.generate(tokens, max_tokens=1, prompt_logprobs=0)
        entries = reply["prompt_logprobs"][len(prompt) :]
        return [e[str(t)]["logprob"] for t, e in zip(completion, entries, strict=True)]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    root = folder / "weights"
    write_checkpoints({root / name: {"seed": seed} for seed, name in enumerate("abc", 1)})
    tokenizer = _tokenizer(root / "a", folder / "tokenizer")
    arguments = [
        *ENGINE_ARGUMENTS,
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        f"--tokenizer={tokenizer}",
    ]
    with WorkerProcess(
        folder / "worker",
        model=root / "a",
        roots=[root],
        engine_arguments=arguments,
        environment={"VLLM_API_KEY": KEY},
    ) as worker:
        worker.public.headers["Authorization"] = f"Bearer {KEY}"
        worker.wait_until_up()
        worker.must("admit", version="base")
        yield Served(worker, root, tokenizer, [])


def _tokenizer(model: Path, target: Path) -> Path:
    """The model's tokenizer, with Qwen's tokens in place of the last ones of its vocabulary."""
    shutil.copytree(model, target, ignore=shutil.ignore_patterns("*.safetensors"))
    file = target / "tokenizer.json"
    content: dict[str, Any] = json.loads(file.read_text())
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    given_up = sorted(vocabulary, key=vocabulary.__getitem__)[-len(QWEN_TOKENS) :]
    content["model"]["merges"] = [m for m in merges if "".join(m) not in given_up]
    for name, old in zip(QWEN_TOKENS, given_up, strict=True):
        vocabulary[name] = vocabulary.pop(old)
        added = {"id": vocabulary[name], "content": name, "special": False}
        rest = ("single_word", "lstrip", "rstrip", "normalized")
        content["added_tokens"].append(added | dict.fromkeys(rest, False))
    file.write_text(json.dumps(content))
    return target
