"""An engine of two processes (tensor parallelism): an adapter that fails leaves them in step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.scripts import write_checkpoints
from tests.support.adapters import QWEN_MODULES, write_adapter
from tests.support.environments import ENGINE_ARGUMENTS
from tests.support.worker import WorkerProcess

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("two processes")]
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "embed_tokens"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights root with the checkpoints `a` and `b`."""
    root = tmp_path_factory.mktemp("weights")
    write_checkpoints({root / "a": {"seed": 1}, root / "b": {"seed": 2}})
    return root


@pytest.fixture(scope="module")
def pair(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker whose engine has two processes and applies adapters to attention and embeddings."""
    with WorkerProcess(
        tmp_path_factory.mktemp("worker"),
        model=root / "a",
        roots=[root],
        options=["--max-loras=3"],
        engine_arguments=[
            *ENGINE_ARGUMENTS,
            "--tensor-parallel-size=2",
            "--lora-target-modules",
            *_TARGETS,
        ],
    ) as worker:
        worker.wait_until_up()
        worker.must("admit", version="base")
        yield worker


def test_an_adapter_with_modules_that_the_engine_does_not_apply_is_refused(
    pair: WorkerProcess, root: Path
) -> None:
    # vLLM fuses gate_proj and up_proj into one layer, which it does not adapt here.
    dropped = {f"model.layers.{layer}.mlp.gate_proj": (128, 64) for layer in range(2)}
    path = write_adapter(root / "dropped", seed=2, modules=QWEN_MODULES | dropped)
    used = pair.state()["adapter_slots"]["used"]
    status, reason, message = pair.refusal(
        "adapters/dropped", version="1", source={"path": str(path)}
    )

    assert (status, reason) == (500, "EngineFailed")
    assert "2 modules of adapter dropped at version 1" in message
    assert "model.layers.0.mlp.gate_proj" in message
    state = pair.state()
    assert state["adapter_slots"]["used"] == used
    assert state["adapter_failure"]["name"] == "dropped"


def test_an_adapter_that_fails_inside_the_engine_harms_no_later_call(
    pair: WorkerProcess, root: Path
) -> None:
    bad = QWEN_MODULES | {"model.embed_tokens": (512, 64)}
    before = pair.greedy()
    source = {"path": str(write_adapter(root / "bad", seed=2, modules=bad))}
    refusal = pair.refusal("adapters/bad", version="1", source=source)
    for name in ("one", "two"):
        good = write_adapter(root / name, seed=3)
        pair.must(f"adapters/{name}", version="1", source={"path": str(good)})
    pair.swap("2", root / "b")

    assert refusal[:2] == (500, "EngineFailed")
    assert "size of tensor" in refusal[2]
    assert pair.state()["adapter_slots"]["used"] == 2
    assert pair.state()["version"] == "2"
    assert pair.greedy() != before
