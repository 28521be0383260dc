"""An engine of two processes (tensor parallelism): an error in both leaves them in step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.adapters import QWEN_MODULES, write_adapter
from tests.support.checkpoints import write_checkpoints
from tests.support.environments import ENGINE_ARGUMENTS
from tests.support.worker import WorkerProcess


@pytest.mark.long
def test_an_adapter_that_fails_inside_the_engine_harms_no_later_call(tmp_path: Path) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    write_checkpoints({root / "a": {"seed": 1}, root / "b": {"seed": 2}})
    bad = QWEN_MODULES | {"model.embed_tokens": (512, 64)}
    with WorkerProcess(
        tmp_path,
        model=root / "a",
        roots=[root],
        options=["--max-loras=3"],
        engine_arguments=[*ENGINE_ARGUMENTS, "--tensor-parallel-size=2"],
    ) as worker:
        worker.wait_until_up()
        worker.must("admit", version="base")
        before = worker.greedy()
        source = {"path": str(write_adapter(root / "bad", seed=2, modules=bad))}
        refusal = worker.refusal("adapters/bad", version="1", source=source)
        for name in ("one", "two"):
            good = write_adapter(root / name, seed=3)
            worker.must(f"adapters/{name}", version="1", source={"path": str(good)})
        worker.swap("2", root / "b")

        assert refusal[:2] == (500, "EngineFailed")
        assert "size of tensor" in refusal[2]
        assert worker.state()["adapter_slots"]["used"] == 2
        assert worker.state()["version"] == "2"
        assert worker.greedy() != before
